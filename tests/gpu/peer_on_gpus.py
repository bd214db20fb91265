"""Peer memory and device barriers on real GPUs: bytes, order, cost, a rank that is lost, nothing left behind.

    PYTHONPATH=$PWD/runtime:$PWD python3 tests/gpu/peer_on_gpus.py --ranks 2 --out result.json

One process a rank, on GPU rank modulo the number of GPUs. Three scenes, each with processes of its own:
`share` (mapping, reads by kernels and by the copy engine, barriers, NCCL beside it, opening again), `silent`
and `killed` (a rank that does not come: the others name it in time, nothing after the meeting runs), `stray`
(a write to a peer's memory faults, where the driver can enforce it). Ends with 1 at any wrong byte, with 2 if
something did not end in time. Needs torch, triton and cuda-bindings.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import multiprocessing as mp
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from plait.peer import PeerWatch, Segment, open_barrier, open_peer_memory
from plait.peer.memory import MappedMemory

MLA_PAGE, INDEX_PAGE = 64 * 656, 64 * 132
PAGES = 512
FLAGS = 1 << 16
SEGMENTS = (
    Segment("mla.0", PAGES * MLA_PAGE),
    Segment("index.0", PAGES * INDEX_PAGE),
    Segment("mla.1", PAGES * MLA_PAGE),
    Segment("flags", 4 * FLAGS),
)
Meet = Callable[[], None]
UNITS = {"mla.0": MLA_PAGE, "index.0": INDEX_PAGE, "mla.1": MLA_PAGE}
LOST_TIMEOUT_S = 3.0
WHOLE_S = 85.0


class Place(NamedTuple):
    """One rank's surroundings."""

    rank: int
    ranks: int
    device: torch.device
    folder: Path
    same_device: bool


def open_here(place: Place, *, timeout_s: float = 40.0) -> MappedMemory:
    return open_peer_memory(
        SEGMENTS,
        rank=place.rank,
        ranks=place.ranks,
        device=place.device,
        folder=place.folder / "peers",
        unit_bytes=(MLA_PAGE, INDEX_PAGE),
        timeout_s=timeout_s,
    )


def pattern(place: Place, owner: int, name: str, turn: int = 0) -> torch.Tensor:
    """Bytes that differ by owner, segment, place and turn."""
    nbytes = dict(SEGMENTS)[name]
    seed = 1 + owner + 16 * list(dict(SEGMENTS)).index(name) + 256 * turn
    at = torch.arange(nbytes, device=place.device)
    return ((at * 2654435761 + seed * 40503 + (at >> 9) * seed) >> 11).to(torch.uint8)


# Scene: share.


def share(place: Place) -> dict[str, Any]:
    device = place.device
    torch.zeros(1, device=device)
    free_before = torch.cuda.mem_get_info(device)[0]
    began = time.perf_counter()
    memory = open_here(place)
    figures: dict[str, Any] = {
        "open_ms": 1e3 * (time.perf_counter() - began),
        "peers_read_only": memory.peers_read_only,
        "stride": memory.stride,
        "bytes_taken": free_before - torch.cuda.mem_get_info(device)[0],
    }
    wrong = {"zero": int(sum(int(memory.own(name).count_nonzero()) for name, _ in SEGMENTS))}
    began = time.perf_counter()
    first = open_barrier(memory, channel=0, name="first", timeout_s=30)
    second = open_barrier(memory, channel=1, name="second", timeout_s=30)
    figures["bind_ms"] = 1e3 * (time.perf_counter() - began)
    for turn in (0, 1):
        for name in UNITS:
            memory.own(name).copy_(pattern(place, place.rank, name, turn))
        first.meet()
        wrong[f"torch {turn}"] = sum(wrong_by_kernels(place, memory, name, turn) for name in UNITS)
        wrong[f"copies {turn}"] = sum(wrong_by_copies(place, memory, name, turn) for name in UNITS)
        second.meet()
    steps = 300 if place.same_device else 3000
    stress = Stress(place, memory)
    wrong["barrier"] = stress.run(steps, (first.meet, second.meet))
    # The same without meetings must see stale words, or the check could not fail.
    figures["stale_words_without_meetings"] = stress.run(200, (nothing, nothing), lag=True)
    torch.cuda.synchronize()
    first.meet()
    figures["steps"] = steps
    figures.update(cost(place, first.meet))
    if not place.same_device:
        wrong["nccl"] = beside_nccl(place, memory, first.meet, second.meet)
    first.meet()
    torch.cuda.synchronize()
    memory.close()
    figures.update(opened_again(place))
    figures["fault"] = first.fault()
    return {"figures": figures, "wrong": wrong}


def wrong_by_kernels(place: Place, memory: MappedMemory, name: str, turn: int) -> int:
    """Bytes that differ when kernels read: whole segments, and pages by index over all ranks."""
    unit, wrong = UNITS[name], 0
    pages = memory.spanning(name).view(-1, unit)
    for owner in range(place.ranks):
        expected = pattern(place, owner, name, turn)
        got = torch.full_like(expected, 0xA5)
        got.copy_(memory.of(owner, name))
        wrong += int((got != expected).sum())
        picked = torch.randperm(PAGES, device=place.device)[:97]
        taken = pages.index_select(0, picked + owner * (memory.stride // unit))
        wrong += int((taken != expected.view(-1, unit)[picked]).sum())
    return wrong


def wrong_by_copies(place: Place, memory: MappedMemory, name: str, turn: int) -> int:
    """Bytes that differ when the copy engine reads: runs of an owner's pages to every N-th page."""
    from cuda.bindings import runtime

    unit, ranks, wrong = UNITS[name], place.ranks, 0
    dense = torch.full((PAGES * ranks, unit), 0xA5, dtype=torch.uint8, device=place.device)
    stream = torch.cuda.current_stream().cuda_stream
    start, count = 3, PAGES - 5
    for owner in range(ranks):
        source = memory.of(owner, name).data_ptr() + start * unit
        (status,) = runtime.cudaMemcpy2DAsync(
            dense.data_ptr() + owner * unit,
            ranks * unit,
            source,
            unit,
            unit,
            count,
            runtime.cudaMemcpyKind.cudaMemcpyDefault,
            stream,
        )
        if int(status):
            raise RuntimeError(f"cudaMemcpy2DAsync: {status}")
    for owner in range(ranks):
        expected = pattern(place, owner, name, turn).view(-1, unit)[start : start + count]
        wrong += int((dense[owner::ranks][:count] != expected).sum())
    wrong += int((dense[count * ranks :] != 0xA5).sum())
    return wrong


def nothing() -> None:
    """In place of a meeting."""


class Stress:
    """Each step: every rank writes the step's number into its words, meets, and reads everybody's."""

    def __init__(self, place: Place, memory: MappedMemory) -> None:
        self._place = place
        self._own = memory.own("flags").view(torch.int32)
        self._all = [memory.of(rank, "flags").view(torch.int32) for rank in range(place.ranks)]
        self._landed = torch.empty(place.ranks, FLAGS, dtype=torch.int32, device=place.device)

    def run(
        self, steps: int, meet: tuple[Callable[[], None], Callable[[], None]], *, lag: bool = False
    ) -> int:
        """Words that were not of the step in which they were read. Nothing waits for the device in it."""
        place = self._place
        wrong = torch.zeros((), dtype=torch.int64, device=place.device)
        number = torch.zeros((), dtype=torch.int32, device=place.device)
        self._own.zero_()
        torch.cuda.synchronize()
        draw = torch.Generator().manual_seed(place.rank)
        for step in range(steps):
            number += 1
            if lag or torch.rand((), generator=draw) < 0.05:
                # A rank that is late, another one in turn.
                late = place.rank == step % place.ranks
                torch.cuda._sleep(int(2e5 if late else 1e3))
            self._own.copy_(number.expand(FLAGS))
            meet[0]()
            if step % 2:
                for rank, words in enumerate(self._all):
                    self._landed[rank].copy_(words, non_blocking=True)  # contiguous: the copy engine
                wrong += (self._landed != number).sum()
            else:
                for words in self._all:
                    wrong += (words != number).sum()
            meet[1]()
        return int(wrong)


def cost(place: Place, meet: Meet) -> dict[str, float]:
    """Microseconds of a meeting on the device, and of its launch on the host."""
    inner, times, host = (5, [], []) if place.same_device else (50, [], [])
    for _ in range(25):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        meet()
        start.record()
        began = time.perf_counter()
        for _ in range(inner):
            meet()
        host.append(1e6 * (time.perf_counter() - began) / inner)
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * start.elapsed_time(end) / inner)
    return {"meet_us": statistics.median(times), "launch_us": statistics.median(host)}


def beside_nccl(place: Place, memory: MappedMemory, first: Meet, second: Meet) -> int:
    """Wrong results of collectives and of peer reads, launched by turns."""
    store = dist.FileStore(str(place.folder / "store"), place.ranks)
    dist.init_process_group(
        "nccl", store=store, rank=place.rank, world_size=place.ranks, device_id=place.device
    )
    wrong = torch.zeros((), dtype=torch.int64, device=place.device)
    words = memory.own("flags").view(torch.int32)
    for step in range(100):
        words.fill_(place.rank + step)
        first()
        total = torch.full((1024,), place.rank + step, dtype=torch.int32, device=place.device)
        dist.all_reduce(total)
        read = sum(memory.of(rank, "flags").view(torch.int32)[:1024] for rank in range(place.ranks))
        wrong += (total != read).sum()
        gathered = torch.empty(place.ranks * 1024, dtype=torch.int32, device=place.device)
        dist.all_gather_into_tensor(gathered, words[:1024])
        wrong += (
            gathered.view(place.ranks, -1)[:, 0] - torch.arange(place.ranks, device=place.device) != step
        ).sum()
        second()
    result = int(wrong)
    dist.destroy_process_group()
    return result


def opened_again(place: Place) -> dict[str, float]:
    """Bytes of the device and descriptors that 20 turns of opening and closing cost in the end."""
    torch.cuda.empty_cache()
    open_here(place).close()
    free, fds = torch.cuda.mem_get_info(place.device)[0], len(os.listdir("/proc/self/fd"))
    began = time.perf_counter()
    for turn in range(20):
        memory = open_here(place)
        memory.own("mla.0").fill_(turn)
        memory.close()
    torch.cuda.synchronize()
    return {
        "open_and_close_ms": 1e3 * (time.perf_counter() - began) / 20,
        "bytes_grown": free - torch.cuda.mem_get_info(place.device)[0],
        "fds_grown": len(os.listdir("/proc/self/fd")) - fds,
    }


# Scenes: silent, killed, stray.


def lost(place: Place, *, kill: bool) -> dict[str, Any]:
    """The last rank does not come to meeting 4. The others must say so in time, and must not go on."""
    memory = open_here(place)
    barrier = open_barrier(memory, channel=2, name="mla", timeout_s=LOST_TIMEOUT_S)
    marks = [memory.of(rank, "flags").view(torch.int32) for rank in range(place.ranks)]
    for _ in range(3):
        barrier.meet()
    torch.cuda.synchronize()
    loser = place.ranks - 1
    if place.rank == loser:
        if kill:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(LOST_TIMEOUT_S + 2.5)
        # What the others launched after the meeting must not have run.
        return {"marks_after": [int(words[0]) for words in marks[:loser]]}
    told: list[tuple[float, str]] = []
    heard = threading.Event()

    def on_fault(message: str) -> None:
        told.append((time.perf_counter(), message))
        heard.set()

    watch = PeerWatch(peers=memory.peers, barriers=[barrier], on_fault=on_fault)
    # Once before: the first launch of a kernel loads it, which waits for what is on the device.
    marks[place.rank].fill_(0)
    torch.cuda.synchronize()
    began = time.perf_counter()
    barrier.meet()
    failed = ""
    try:
        marks[place.rank].fill_(77)
        torch.cuda.synchronize()
    except RuntimeError as error:
        failed = str(error).splitlines()[0]
    stopped_s = time.perf_counter() - began
    heard.wait(10)
    watch.close()
    fault = barrier.fault()
    return {
        "loser": loser,
        "told": told[0][1] if told else "",
        "told_after_s": told[0][0] - began if told else None,
        "stopped_after_s": stopped_s,
        "cuda_error": failed,
        "fault": list(fault) if fault else None,
    }


def stray(place: Place) -> dict[str, Any]:
    """Rank 1 writes where it must not: its own process gets the error, and rank 0's bytes stay."""
    memory = open_here(place)
    if not memory.peers_read_only:
        return {"skipped": "the driver does not map peers for reading only"}
    if place.rank == 1:
        memory.of(0, "mla.0")[:4096].fill_(9)
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            return {"cuda_error": str(error).splitlines()[0]}
        return {"cuda_error": ""}
    time.sleep(3)
    return {"touched": int(memory.own("mla.0").count_nonzero())}


SCENES: dict[str, Callable[[Place], dict[str, Any]]] = {
    "share": share,
    "silent": lambda place: lost(place, kill=False),
    "killed": lambda place: lost(place, kill=True),
    "stray": stray,
}


# The processes, and the verdict.


def rank_main(scene: str, rank: int, ranks: int, folder: str) -> None:
    faulthandler.dump_traceback_later(WHOLE_S - 5, exit=True)
    gpus = torch.cuda.device_count()
    device = torch.device("cuda", rank % gpus)
    torch.cuda.set_device(device)
    try:
        said = SCENES[scene](Place(rank, ranks, device, Path(folder), gpus < ranks))
    except BaseException:
        said = {"error": traceback.format_exc()}
    (Path(folder) / f"{rank}.json").write_text(json.dumps(said))


def play(scene: str, ranks: int, until: float) -> dict[str, Any]:
    """Run a scene; kill what has not ended `until` then."""
    context = mp.get_context("spawn")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="plait-") as folder:
        processes = [
            context.Process(target=rank_main, args=(scene, rank, ranks, folder), daemon=True)
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        hung = []
        for rank, process in enumerate(processes):
            process.join(max(until - time.monotonic(), 0.1))
            if process.is_alive():
                hung.append(rank)
                process.kill()
                process.join()
        said = []
        for rank in range(ranks):
            path = Path(folder) / f"{rank}.json"
            said.append(json.loads(path.read_text()) if path.exists() else None)
    return {
        "ranks": said,
        "exit_codes": [process.exitcode for process in processes],
        "hung": hung,
        "seconds": round(time.monotonic() - began, 1),
    }


def faults_of(scene: str, result: dict[str, Any], ranks: int) -> list[str]:
    """What is wrong with a scene's result."""
    said, codes = result["ranks"], result["exit_codes"]
    if result["hung"]:
        return [f"{scene}: rank {rank} did not end" for rank in result["hung"]]
    wrong = [f"{scene}: rank {r}: {s['error']}" for r, s in enumerate(said) if s and "error" in s]
    if wrong:
        return wrong
    if scene == "share":
        for rank, one in enumerate(said):
            wrong += [f"share: rank {rank}: {what}: {n} wrong" for what, n in one["wrong"].items() if n]
            figures = one["figures"]
            if figures["bytes_grown"] > 32 << 20 or figures["fds_grown"]:
                wrong.append(f"share: rank {rank} grew: {figures}")
            if figures["fault"] is not None:
                wrong.append(f"share: rank {rank}: {figures['fault']}")
        if ranks > 1 and not any(one["figures"]["stale_words_without_meetings"] for one in said):
            wrong.append("share: no word was stale without meetings: the check cannot fail")
        return wrong
    if scene == "stray":
        if "skipped" in said[0]:
            return []
        if said[0]["touched"] or not said[1]["cuda_error"]:
            wrong.append(f"stray: {said}")
        return wrong
    loser = ranks - 1
    kill = scene == "killed"
    for rank, one in enumerate(said[:loser]):
        limit = LOST_TIMEOUT_S + 1.0
        if f"rank {loser} (pid" not in one["told"] or one["told_after_s"] > limit or not one["cuda_error"]:
            wrong.append(f"{scene}: rank {rank}: {one}")
        if one["fault"] is None or one["fault"][1:] != [4, [loser]] or one["stopped_after_s"] > limit:
            wrong.append(f"{scene}: rank {rank}: {one}")
        if kill and one["told_after_s"] > 1.5:
            wrong.append(f"{scene}: rank {rank} was told late: {one}")
    if not kill and any(said[loser]["marks_after"]):
        wrong.append(f"{scene}: work after the meeting ran: {said[loser]}")
    expected = [0] * loser + [-signal.SIGKILL if kill else 0]
    if codes != expected:
        wrong.append(f"{scene}: exit codes {codes}, not {expected}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scenes", default=",".join(SCENES))
    asked = parser.parse_args()
    until = time.monotonic() + WHOLE_S
    results: dict[str, Any] = {"ranks": asked.ranks, "gpus": torch.cuda.device_count()}
    results["device"] = torch.cuda.get_device_name(0)
    wrong: list[str] = []
    for scene in asked.scenes.split(","):
        result = results[scene] = play(scene, asked.ranks, until)
        wrong += faults_of(scene, result, asked.ranks)
        print(f"{scene}: {result['seconds']} s", json.dumps(result["ranks"][0])[:1500], flush=True)
        results["wrong"] = wrong
        asked.out.write_text(json.dumps(results, indent=1) + "\n")
        if result["hung"]:
            break
    print("\n".join(wrong) if wrong else "all well", flush=True)
    return (2 if any("did not end" in one for one in wrong) else 1) if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
