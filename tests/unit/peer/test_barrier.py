"""Barriers on memory of the host, between real processes."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from tests.unit.peer.ranks import group
from tests.unit.peer.test_host_memory import opened

from plait.peer import CHANNELS, PeerLostError, open_barrier
from plait.peer.barrier import Barrier
from plait.peer.pads import FIRST_EPOCH

MEETINGS = 1000


def meet_often(rank: int, ranks: int, folder: Path, meetings: int) -> tuple[int, int]:
    """Each rank writes how far it is before each meeting, and reads the others' after it."""
    memory = opened(rank, ranks, folder)
    barriers = [open_barrier(memory, channel=c, name=f"c{c}", timeout_s=100) for c in (0, CHANNELS - 1)]
    rng = random.Random(rank)
    written = [memory.of(other, "mla.0")[:4].numpy().view("int32") for other in range(ranks)]
    ahead = 0
    for number in range(1, meetings + 1):
        if rng.random() < 0.03:
            time.sleep(rng.random() * 0.003)
        written[rank][0] = number
        barriers[number % 2].meet()
        for other in range(ranks):
            seen = int(written[other][0])
            # Whoever is past this meeting may have written for the next one, but cannot be past that.
            assert number <= seen <= number + 1, f"at meeting {number} rank {other} was at {seen}"
            ahead += seen > number
    return ahead, max(FIRST_EPOCH + meetings // 2 - 2**31, 0)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_no_rank_passes_before_all_have_come(ranks: int, tmp_path: Path) -> None:
    with group(meet_often, ranks=ranks, folder=tmp_path / "peers", meetings=MEETINGS) as running:
        values = running.values()
    assert all(wrapped > 0 for _, wrapped in values), "the epochs did not pass the wrap"


def lose_one(rank: int, ranks: int, folder: Path, lost: int, number: int) -> float:
    memory = opened(rank, ranks, folder)
    barrier = open_barrier(memory, channel=3, name="mla", timeout_s=1.5 if number == signal.SIGSTOP else 60)
    for _ in range(5):
        barrier.meet()
    if rank == lost:
        os.kill(os.getpid(), number)
    started = time.monotonic()
    with pytest.raises(PeerLostError) as caught:
        barrier.meet()
    took = time.monotonic() - started
    text = str(caught.value)
    assert f"rank {lost} (pid {memory.peers._pids[lost]})" in text
    assert "meeting 6 of barrier 'mla'" in text
    assert ("has ended" if number == signal.SIGKILL else "did not come within 1.5 s") in text
    fault = barrier.fault()
    assert fault is not None
    assert (fault.channel, fault.meeting, fault.missing) == (3, 6, (lost,))
    return took


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_rank_is_named_by_all_others(number: int, tmp_path: Path) -> None:
    with group(lose_one, ranks=4, folder=tmp_path / "peers", lost=2, number=int(number)) as running:
        told = [running.hear(rank) for rank in (0, 1, 3)]
    assert not any(one.error for one in told), told
    # A killed one is seen long before the timeout of 60 s.
    assert all(one.value < 30 for one in told)


def come_then_end(rank: int, ranks: int, folder: Path) -> str:
    memory = opened(rank, ranks, folder)
    barrier = open_barrier(memory, channel=0, name="last", timeout_s=60)
    if rank == 1:
        barrier_without_waiting(barrier)
        os.kill(os.getpid(), signal.SIGKILL)
    while not memory.peers.ended():
        time.sleep(0.01)
    barrier.meet()
    return "met"


def barrier_without_waiting(barrier: Barrier) -> None:
    barrier._wait = lambda epoch, missing: None  # type: ignore[attr-defined]
    barrier.meet()


def test_a_rank_that_came_and_ended_then_has_come(tmp_path: Path) -> None:
    with group(come_then_end, ranks=2, folder=tmp_path / "peers") as running:
        assert running.hear(0).value == "met"


def test_channels_and_timeouts_that_there_are_not(tmp_path: Path) -> None:
    memory = opened(0, 1, tmp_path / "peers")
    for channel in (-1, CHANNELS):
        with pytest.raises(ValueError, match="channel is"):
            open_barrier(memory, channel=channel, name="x", timeout_s=1)
    with pytest.raises(ValueError, match="timeout_s is 0"):
        open_barrier(memory, channel=0, name="x", timeout_s=0)
    memory.close()
