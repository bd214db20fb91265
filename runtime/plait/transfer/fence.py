"""No page is reused before its transfer has ended: who may still read or write a room's pages.

A room (one request's transfer) can fail on one rank while others are still sending, and decode can abort
while prefill is still writing. Both sides therefore hold a failed room's pages until it is quiet:

- prefill: `SendFence` counts the room's chunks from the moment they are queued until the worker is done;
- decode: `AckFence` waits until every prefill rank has said that it is done with the room.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable

log = logging.getLogger("plait.transfer.fence")


class SendFence:
    """Chunks of each room that are queued or being sent by this rank. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy: dict[int, int] = defaultdict(int)
        self._waiting: dict[int, list[Callable[[], None]]] = defaultdict(list)

    def enter(self, room: int) -> None:
        """A chunk of `room` is about to be queued."""
        with self._lock:
            self._busy[room] += 1

    def leave(self, room: int) -> None:
        """The worker is done with a chunk of `room`; runs what waited for the room to be quiet.

        Raises RuntimeError if no chunk of `room` was entered: the count would be wrong from here on.
        """
        with self._lock:
            if room not in self._busy:
                raise RuntimeError(
                    f"room {room}: a chunk was sent that had not been counted when it was queued"
                )
            self._busy[room] -= 1
            if self._busy[room] > 0:
                return
            del self._busy[room]
            waiting = self._waiting.pop(room, [])
        for call in waiting:
            try:
                call()
            except Exception as error:
                # What waited is somebody's courtesy (an answer to a peer that may be gone), not the worker's.
                log.warning("room %s is quiet, but what waited for it failed: %s", room, error)

    def busy(self, room: int) -> bool:
        """Whether this rank may still read pages of `room`."""
        with self._lock:
            return room in self._busy

    def rooms(self) -> int:
        """Rooms with chunks under way."""
        with self._lock:
            return len(self._busy)

    def when_quiet(self, room: int, call: Callable[[], None]) -> None:
        """Run `call` once `room` is quiet: now, or in the worker's thread."""
        with self._lock:
            if room in self._busy:
                self._waiting[room].append(call)
                return
        call()


class AckFence:
    """Failed rooms of a decode engine whose senders have not all acknowledged yet. Thread-safe.

    expired: rooms that were given up after `timeout_s`, their senders neither done nor known to be dead.
    """

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._acks: dict[int, set[str]] = defaultdict(set)
        self._since: dict[int, float] = {}
        self._lost: set[str] = set()
        self._given_up: set[int] = set()
        self.expired = 0

    def acknowledge(self, room: int, *, sender: str) -> None:
        """The prefill rank `sender` is done with `room`. Twice counts once: decode may ask twice."""
        with self._lock:
            if room in self._since:
                self._acks[room].add(sender)

    def lose(self, address: str) -> None:
        """The prefill at `address` does not answer. Its ranks may write all the same: a server can be slow
        while they go on, so this only tells that it is time to look whether they live."""
        with self._lock:
            self._lost.add(address)

    def lost(self, address: str) -> bool:
        """Whether the prefill at `address` does not answer."""
        with self._lock:
            return address in self._lost

    def revive(self, address: str) -> None:
        """A prefill answers at `address` (again)."""
        with self._lock:
            self._lost.discard(address)

    def open(self, room: int) -> bool:
        """Start to hold `room`; True the first time (the caller then asks all ranks to acknowledge)."""
        with self._lock:
            if room in self._since:
                return False
            self._since[room] = time.monotonic()
            return True

    def holds(self, room: int, *, ranks: int) -> bool:
        """Whether pages of `room` may still be written by the `ranks` ranks that it was promised to."""
        with self._lock:
            since = self._since.get(room)
            if since is None:
                return False
            if len(self._acks[room]) >= ranks:
                return False
            if time.monotonic() - since > self._timeout_s:
                if room not in self._given_up:
                    self._given_up.add(room)
                    self.expired += 1
                return False
            return True

    def forget(self, room: int) -> None:
        """The room's pages are released."""
        with self._lock:
            self._since.pop(room, None)
            self._acks.pop(room, None)
            self._given_up.discard(room)
