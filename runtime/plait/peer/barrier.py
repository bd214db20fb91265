"""Barriers of the ranks of one host: what any rank did before a meeting is visible to all after it.

A meeting is passed when every rank has come to it. On CUDA it is a kernel on the current stream, so that the
host does not wait; on the host it is this thread that waits. All ranks must meet equally often on a channel:
call `meet` where every rank passes, rows or no rows.
"""

from __future__ import annotations

import ctypes
import time
from typing import Protocol

import torch

from plait.peer.errors import PeerLostError
from plait.peer.host_map import Fence
from plait.peer.memory import MappedMemory
from plait.peer.pads import (
    CHANNEL_BYTES,
    CHANNELS,
    COUNTERS_OFFSET,
    FIRST_EPOCH,
    WORD_BYTES,
    Fault,
    after,
    is_behind,
    meeting_number,
    ranks_of,
)

_SPINS = 200
"""Looks without sleeping: others are often a few microseconds behind."""
_SLEEP_S, _LONGEST_SLEEP_S = 20e-6, 2e-3


class Barrier(Protocol):
    """Meetings on one channel. name: what the channel is for, in messages. timeout_s: of one meeting."""

    name: str
    timeout_s: float

    def meet(self) -> None:
        """Come to the next meeting."""

    def fault(self) -> Fault | None:
        """The meeting that failed, if one has; from any thread, at any time, without touching the device."""


def open_barrier(memory: MappedMemory, *, channel: int, name: str, timeout_s: float) -> Barrier:
    """The barrier on `channel` (0 to CHANNELS - 1) of the pads of `memory`; once per channel and process.

    Meetings of a channel follow one another: on CUDA launch them all on one stream, or order the streams by
    events. Raises ValueError for a channel or a timeout that there is not.
    """
    if not 0 <= channel < CHANNELS:
        raise ValueError(f"channel is {channel}, there are {CHANNELS}")
    if timeout_s <= 0:
        raise ValueError(f"timeout_s is {timeout_s}: a meeting takes some time")
    if memory.device.type == "cuda":
        return DeviceBarrier(memory, channel=channel, name=name, timeout_s=timeout_s)
    return HostBarrier(memory, channel=channel, name=name, timeout_s=timeout_s)


class HostBarrier:
    """Meetings of threads, on memory of the host. `meet` raises PeerLostError if a rank that has not come has
    ended, or does not come in time; after that the barrier is of no use."""

    def __init__(self, memory: MappedMemory, *, channel: int, name: str, timeout_s: float) -> None:
        self.name, self.timeout_s = name, timeout_s
        self._channel, self._rank, self._peers = channel, memory.rank, memory.peers
        self._fence = Fence()
        self._epoch = FIRST_EPOCH
        self._fault: Fault | None = None
        # Aligned words by ctypes: each read and write is one instruction, never half a word.
        words = ctypes.c_int32 * memory.ranks
        self._pads = [
            words.from_address(memory.pads.base + rank * memory.pads.stride + channel * CHANNEL_BYTES)
            for rank in range(memory.ranks)
        ]

    def meet(self) -> None:
        """Come to the next meeting; return once all have."""
        epoch = self._epoch = after(self._epoch)
        self._fence()
        for pad in self._pads:
            pad[self._rank] = epoch
        if missing := self._missing(epoch):
            self._wait(epoch, missing)
        self._fence()

    def fault(self) -> Fault | None:
        """See `Barrier`."""
        return self._fault

    def _missing(self, epoch: int) -> list[int]:
        return [rank for rank, seen in enumerate(self._pads[self._rank]) if is_behind(seen, epoch)]

    def _wait(self, epoch: int, missing: list[int]) -> None:
        deadline = time.monotonic() + self.timeout_s
        turns, sleep = 0, _SLEEP_S
        while missing:
            turns += 1
            if turns > _SPINS:
                # Asked before the pad is looked at again: a rank may come and then end.
                ended = self._peers.ended()
                late = time.monotonic() > deadline
                missing = self._missing(epoch)
                if gone := ended.intersection(missing):
                    self._lost(epoch, sorted(gone), "has ended")
                if missing and late:
                    self._lost(epoch, missing, f"did not come within {self.timeout_s:g} s")
                time.sleep(sleep)
                sleep = min(2 * sleep, _LONGEST_SLEEP_S)
            else:
                missing = self._missing(epoch)

    def _lost(self, epoch: int, missing: list[int], what: str) -> None:
        self._fault = Fault(self._channel, meeting_number(epoch), tuple(missing))
        raise PeerLostError(
            f"{self._peers.names(missing)} {what}, at meeting {self._fault.meeting} of barrier {self.name!r}"
        )


class DeviceBarrier:
    """Meetings of CUDA streams. `meet` launches one and returns.

    If a rank does not come within `timeout_s`, the device of this rank is stopped by a trap: nothing that was
    launched after the meeting runs, every later CUDA call of this process fails, and `fault` says who was
    missing (`plait.peer.watch` asks it).
    """

    def __init__(self, memory: MappedMemory, *, channel: int, name: str, timeout_s: float) -> None:
        from plait.kernels.barrier import bind_meet  # only here: it loads Triton

        self.name, self.timeout_s = name, timeout_s
        self._channel = channel
        # Pinned, so that the device writes to it while the host reads; kept, for the kernel has its address.
        self._status = torch.zeros(2, dtype=torch.int64, pin_memory=True)
        self._words = self._status.numpy()
        pads = memory.pads
        self.meet = bind_meet(
            counter=pads.base + memory.rank * pads.stride + COUNTERS_OFFSET + channel * WORD_BYTES,
            first=pads.base + channel * CHANNEL_BYTES,
            stride=pads.stride,
            status=self._status.data_ptr(),
            limit_ns=int(timeout_s * 1e9),
            rank=memory.rank,
            ranks=memory.ranks,
            device=memory.device,
        )

    def fault(self) -> Fault | None:
        """See `Barrier`."""
        missing = int(self._words[1])
        if not missing:
            return None
        return Fault(self._channel, meeting_number(int(self._words[0])), ranks_of(missing))
