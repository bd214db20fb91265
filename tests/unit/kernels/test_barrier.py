"""The device barrier without a device: what is compiled for one, and what the kernel does when interpreted.

The interpreter is chosen before `import triton`, for a whole process: so the tests that need it run in a
child of this file's own. The real thing is shown by tests/gpu/peer_on_gpus.py, and its twin in Python by
tests/unit/peer/test_barrier.py.
"""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="runs in the child of test_under_the_interpreter")
LANES = 32
STRIDE = 1024
FIRST = 2**31 - 5
GUARD = -77


@pytest.mark.skipif(INTERPRETED, reason="this is the child")
def test_under_the_interpreter() -> None:
    child = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert child.returncode == 0, child.stdout[-6000:] + child.stderr[-2000:]
    assert " passed" in child.stdout


@pytest.mark.skipif(INTERPRETED, reason="compiles")
def test_what_is_compiled_for_a_device() -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from plait.kernels.barrier import meet_kernel

    names = ("counter", "first", "stride", "status", "limit_ns")
    signature = dict.fromkeys(names, "i64") | {"RANK": "constexpr", "RANKS": "constexpr"}
    source = ASTSource(meet_kernel, signature, constexprs={(5,): 1, (6,): 4})
    made = compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 1})
    ptx = str(made.asm["ptx"])
    # Told to all before anything is waited for; looked at once, and again in the loop; and a way to stop.
    parts = ("st.release.sys", "ld.acquire.sys", "bra", "globaltimer", "ld.acquire.sys", "trap;")
    at = -1
    for part in parts:
        at = ptx.index(part, at + 1)
    assert ".reqntid 32" in ptx, "more than one warp: a word would be stored by several threads"


class Pads:
    """The pads of `ranks` ranks in memory that forked processes share, between guard words."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._memory = mmap.mmap(-1, STRIDE * ranks + 4096)
        self._words = np.frombuffer(self._memory, dtype=np.int32)
        self._words[:] = GUARD
        self.signals = [self._words[r * STRIDE // 4 :][:ranks] for r in range(ranks)]
        beyond = self._words[STRIDE * ranks // 4 :]
        self.counters, self.data = beyond[:ranks], beyond[64 : 64 + ranks]
        self.status = np.frombuffer(self._memory, dtype=np.int64)[STRIDE * ranks // 8 + 64 :][: 2 * ranks]
        for words in (*self.signals, self.counters):
            words[:] = FIRST
        self.status[:] = 0
        self.data[:] = 0
        self._mine = np.zeros(len(self._words), dtype=bool)
        for part in (*self.signals, self.counters, self.data, self.status.view(np.int32)):
            first = (part.ctypes.data - self._words.ctypes.data) // 4
            self._mine[first : first + part.size] = True

    def meet(self, rank: int, *, turns: int) -> None:
        from plait.kernels.barrier import meet_kernel

        status = self.status[2 * rank :].ctypes.data
        base = self._words.ctypes.data
        meet_kernel[(1,)](
            self.counters[rank:].ctypes.data, base, STRIDE, status, turns, RANK=rank, RANKS=self.ranks
        )

    def check(self) -> None:
        assert (self._words[~self._mine] == GUARD).all(), "a word beyond the pads was written"


def int32(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


@interpreted
@pytest.mark.parametrize(("ranks", "rank"), [(1, 0), (2, 1), (5, 3), (32, 0)])
def test_a_meeting_tells_all_and_counts_on_across_the_wrap(ranks: int, rank: int) -> None:
    pads = Pads(ranks)
    for number in range(1, 12):
        epoch = int32(FIRST + number)
        # The others have come already, some of them for the next meeting too.
        for other in range(ranks):
            if other != rank:
                pads.signals[rank][other] = int32(epoch + other % 2)
        pads.meet(rank, turns=0)
        assert [int(words[rank]) for words in pads.signals] == [epoch] * ranks
        assert pads.counters[rank] == epoch
        assert not pads.status.any()
    for other in range(ranks):
        assert all(pads.signals[other][r] == FIRST for r in range(ranks) if r != rank and other != rank)
    pads.check()


@interpreted
@pytest.mark.parametrize("missing", [(1,), (0, 3), (4,), (0, 1, 3, 4)])
@pytest.mark.parametrize("number", [1, 7])
def test_who_is_missing_is_told_with_the_epoch(missing: tuple[int, ...], number: int) -> None:
    pads, rank = Pads(5), 2
    before, epoch = int32(FIRST + number - 1), int32(FIRST + number)
    pads.counters[rank] = before
    for other in range(5):
        pads.signals[rank][other] = before if other in missing else epoch
    pads.meet(rank, turns=30)
    words = pads.status[2 * rank : 2 * rank + 2]
    assert words.tolist() == [epoch, sum(1 << other for other in missing)]
    assert not pads.status[: 2 * rank].any()
    assert not pads.status[2 * rank + 2 :].any()
    pads.check()


def forked(ranks: int, work: Callable[[int], None]) -> list[int]:
    """Exit codes of `work(rank)` in processes that share this one's mmaps."""
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            try:
                work(rank)
                os._exit(0)
            except BaseException as error:
                os.write(2, f"rank {rank}: {error!r}\n".encode())
                os._exit(1)
        children.append(child)
    deadline, codes = time.monotonic() + 200, []
    for child in children:
        while (done := os.waitpid(child, os.WNOHANG))[0] == 0:
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.01)
        codes.append(os.waitstatus_to_exitcode(done[1]))
    return codes


@interpreted
@pytest.mark.parametrize("ranks", [2, 3])
def test_no_process_passes_before_all_have_come(ranks: int) -> None:
    pads = Pads(ranks)

    def work(rank: int) -> None:
        draw: Any = np.random.default_rng(rank)
        for number in range(1, 41):
            if draw.random() < 0.2:
                time.sleep(draw.random() * 0.01)
            pads.data[rank] = number
            pads.meet(rank, turns=10_000_000)
            seen = pads.data.tolist()
            assert all(number <= one <= number + 1 for one in seen), f"at meeting {number}: {seen}"

    assert forked(ranks, work) == [0] * ranks
    assert not pads.status.any()
    pads.check()
