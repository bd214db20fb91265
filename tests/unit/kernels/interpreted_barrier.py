"""The device barrier under Triton's interpreter. Collected by `test_barrier.py`, in a child of its own."""

from __future__ import annotations

import mmap
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from plait.kernels.barrier import meet_kernel

STRIDE = 1024
FIRST = 2**31 - 5
GUARD = -77


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
        status = self.status[2 * rank :].ctypes.data
        base = self._words.ctypes.data
        meet_kernel[(1,)](
            self.counters[rank:].ctypes.data, base, STRIDE, status, turns, RANK=rank, RANKS=self.ranks
        )

    def check(self) -> None:
        assert (self._words[~self._mine] == GUARD).all(), "a word beyond the pads was written"


def int32(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


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
