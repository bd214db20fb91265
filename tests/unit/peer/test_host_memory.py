"""Shared memory of the host, between real processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch
from tests.unit.peer.ranks import HANG_S, group, open_fds

from plait.peer import PeersCannotMapError, Segment, open_barrier, open_peer_memory
from plait.peer.memory import MappedMemory

CPU = torch.device("cpu")
PAGE = {"mla.0": 656 * 4, "index.0": 132 * 4, "empty": 64}
SEGMENTS = (Segment("mla.0", 7 * PAGE["mla.0"]), Segment("index.0", 5 * PAGE["index.0"]), Segment("empty", 0))


def opened(rank: int, ranks: int, folder: Path, **other: object) -> MappedMemory:
    return open_peer_memory(
        SEGMENTS,
        **{  # type: ignore[arg-type]
            "rank": rank,
            "ranks": ranks,
            "device": CPU,
            "folder": folder,
            "unit_bytes": tuple(PAGE.values()),
            "timeout_s": 30.0,
            **other,
        },
    )


def pattern(rank: int, nbytes: int) -> torch.Tensor:
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(rank))


def read_all(rank: int, ranks: int, folder: Path) -> tuple[bool, int]:
    memory = opened(rank, ranks, folder)
    barrier = open_barrier(memory, channel=0, name="test", timeout_s=60)
    zeroed = not any(memory.own(name).any() for name in PAGE)
    for name, nbytes in SEGMENTS:
        memory.own(name).copy_(pattern(rank, nbytes))
    barrier.meet()
    for name, nbytes in SEGMENTS:
        spanning = memory.spanning(name)
        assert spanning.numel() == (ranks - 1) * memory.stride + nbytes
        for other in range(ranks):
            expected = pattern(other, nbytes)
            assert torch.equal(memory.of(other, name), expected)
            at = other * memory.stride
            assert torch.equal(spanning[at : at + nbytes], expected)
            unit = PAGE[name]
            if nbytes:
                pages = spanning.view(-1, unit)
                first = other * (memory.stride // unit)
                picked = torch.arange(first, first + nbytes // unit)
                assert torch.equal(pages.index_select(0, picked).view(-1), expected)
    barrier.meet()
    memory.close()
    memory.close()
    with pytest.raises(RuntimeError, match="closed"):
        memory.own("mla.0")
    return zeroed, memory.stride


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_rank_reads_every_rank(ranks: int, tmp_path: Path) -> None:
    with group(read_all, ranks=ranks, folder=tmp_path / "peers") as running:
        values = running.values()
    assert all(zeroed for zeroed, _ in values), "memory was not zero at first"
    assert len({stride for _, stride in values}) == 1
    assert not list((tmp_path / "peers").iterdir()), "files were left behind"


def reopen(rank: int, ranks: int, folder: Path) -> tuple[int, int]:
    opened(rank, ranks, folder).close()
    before = open_fds(), mapped()
    for turn in range(20):
        memory = opened(rank, ranks, folder)
        memory.own("mla.0").fill_(turn + 1)
        memory.close()
    return open_fds() - before[0], mapped() - before[1]


def mapped() -> int:
    return sum("memfd:plait" in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_opening_again_leaves_nothing_behind(tmp_path: Path) -> None:
    with group(reopen, ranks=2, folder=tmp_path / "peers") as running:
        assert running.values() == [(0, 0), (0, 0)]


def write_to_a_peer(rank: int, ranks: int, folder: Path) -> bool:
    memory = opened(rank, ranks, folder)
    assert memory.peers_read_only
    if rank == 1:
        memory.of(0, "mla.0")[0] = 1
    time.sleep(1)
    return bool(memory.own("mla.0").any())


def test_a_write_to_another_ranks_memory_faults(tmp_path: Path) -> None:
    with group(write_to_a_peer, ranks=2, folder=tmp_path / "peers") as running:
        assert running.hear(0).value is False
        running.processes[1].join(HANG_S)
        assert running.processes[1].exitcode == -signal.SIGSEGV


def touch_a_hole(rank: int, ranks: int, folder: Path) -> None:
    memory = opened(rank, ranks, folder)
    assert memory.stride > memory.arena.size
    memory.spanning("mla.0")[memory.arena.size].item()


def test_holes_between_ranks_have_no_memory(tmp_path: Path) -> None:
    with group(touch_a_hole, ranks=2, folder=tmp_path / "peers") as running:
        for process in running.processes:
            process.join(HANG_S)
            assert process.exitcode == -signal.SIGSEGV


def outlive(rank: int, ranks: int, folder: Path) -> int:
    memory = opened(rank, ranks, folder)
    barrier = open_barrier(memory, channel=0, name="test", timeout_s=60)
    memory.own("mla.0").fill_(rank + 7)
    barrier.meet()
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.3)
    return int(memory.of(0, "mla.0").max())


def test_the_memory_of_a_dead_rank_stays_readable(tmp_path: Path) -> None:
    with group(outlive, ranks=2, folder=tmp_path / "peers") as running:
        assert running.hear(1).value == 7


def test_ranks_with_other_segments_are_refused(tmp_path: Path) -> None:
    with group(open_unequal, ranks=2, folder=tmp_path / "peers") as running:
        told = running.all()
    assert [one.error for one in told] == ["PeersCannotMapError"] * 2
    assert all("rank 1 (pid" in one.text and "otherwise than rank 0" in one.text for one in told)


def open_unequal(rank: int, ranks: int, folder: Path) -> None:
    open_peer_memory(
        [Segment("a", 1000 + rank)],
        rank=rank,
        ranks=ranks,
        device=CPU,
        folder=folder,
        unit_bytes=(64,),
        timeout_s=20,
    )


def test_a_device_that_no_process_can_share_is_refused(tmp_path: Path) -> None:
    with group(open_meta, ranks=2, folder=tmp_path / "peers") as running:
        told = running.all()
    assert [one.error for one in told] == ["PeersCannotMapError"] * 2
    assert all("meta" in one.text for one in told)


def open_meta(rank: int, ranks: int, folder: Path) -> None:
    opened(rank, ranks, folder, device=torch.device("meta") if rank == 1 else CPU)


def test_wrong_names_and_ranks(tmp_path: Path) -> None:
    memory = opened(0, 1, tmp_path / "peers")
    with pytest.raises(KeyError):
        memory.own("mla.1")
    for rank in (-1, 1):
        with pytest.raises(IndexError):
            memory.of(rank, "mla.0")
    memory.close()
    with pytest.raises(PeersCannotMapError, match="33 ranks"):
        opened(0, 33, tmp_path / "peers")
    with pytest.raises(ValueError, match="rank is 2"):
        opened(2, 2, tmp_path / "peers")
