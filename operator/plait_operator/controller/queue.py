"""Keys that wait for a worker: each once, never two workers on one, the longest due first."""

from __future__ import annotations

import heapq
import random
import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)


class Turn(NamedTuple, Generic[K]):
    """A key for a worker. `since`: when the first event since the last turn came, of the queue's clock."""

    key: K
    since: float


class WorkQueue(Generic[K]):
    """Thread safe.

    `gather_s`: how long a key waits after its first event, so that the many events of one change make one
    turn. `apart_s`: a key's next turn begins so long after its last one ended at the earliest: what follows
    from a change comes in many small steps (each pod that starts), and every look at one writes a status.
    `first_s`, `most_s`: the pause after the first failure in a row, and the longest.
    """

    def __init__(
        self,
        *,
        gather_s: float = 0.05,
        apart_s: float = 0.0,
        first_s: float = 0.5,
        most_s: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
        rand: Callable[[], float] = random.random,
    ) -> None:
        self._gather_s = gather_s
        self._apart_s = apart_s
        self._first_s = first_s
        self._most_s = most_s
        self._clock = clock
        self._rand = rand
        self._condition = threading.Condition()
        # When each waiting key is due; the heap may hold older, later entries of it, which are passed over.
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._order = 0
        self._since: dict[K, float] = {}
        self._running: dict[K, float] = {}
        # When the last turn of a key ended, the oldest first; those that hold nothing back are dropped.
        self._ended: dict[K, float] = {}
        self._failures: dict[K, int] = {}
        self._closed = False

    def add(self, key: K, *, after_s: float | None = None) -> None:
        """The key needs a turn: soon after this event, or in `after_s` seconds if nothing happens before."""
        now = self._clock()
        with self._condition:
            if self._closed:
                return
            if after_s is None:
                self._since.setdefault(key, now)
                self._schedule(key, now + self._gather_s)
            else:
                self._schedule(key, now + max(after_s, self._gather_s))

    def retry(self, key: K) -> float:
        """Another turn after a failure; seconds until then. Events in between bring it on earlier."""
        with self._condition:
            failures = self._failures.get(key, 0)
            self._failures[key] = failures + 1
            # The exponent is bounded, or a week of failures would overflow.
            pause = min(self._most_s, self._first_s * 2.0 ** min(failures, 32))
            pause *= 0.5 + 0.5 * self._rand()
        self.add(key, after_s=pause)
        return pause

    def forget(self, key: K) -> None:
        """All is well with the key: its next failure is a first one."""
        with self._condition:
            self._failures.pop(key, None)

    def get(self, *, timeout_s: float) -> Turn[K] | None:
        """The next key that is due, None when none is within the time or the queue is closed.

        The worker must call `done` for it.
        """
        deadline = self._clock() + timeout_s
        with self._condition:
            while not self._closed:
                now = self._clock()
                due = self._pop(now)
                if due is not None:
                    key = due
                    self._running[key] = now
                    if self._heap:
                        # A notice wakes one worker, which may be the one that leaves here: pass it on.
                        self._condition.notify()
                    return Turn(key, self._since.pop(key, now))
                left = deadline - now
                if left <= 0:
                    return None
                self._condition.wait(min(left, max(0.001, self._heap[0][0] - now)) if self._heap else left)
        return None

    def done(self, key: K) -> None:
        """The worker has finished with the key."""
        with self._condition:
            del self._running[key]
            self._end(key, self._clock())
            # An event that came meanwhile was kept in `_due`; put it where a worker finds it.
            due = self._due.pop(key, None)
            if due is not None:
                self._schedule(key, due)

    def close(self) -> None:
        """Wake all workers; nothing is handed out any more."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    @property
    def depth(self) -> int:
        """Keys that are due now and wait."""
        now = self._clock()
        with self._condition:
            return sum(due <= now for due in self._due.values())

    @property
    def longest_turn_s(self) -> float:
        """How long the oldest turn under way has taken."""
        now = self._clock()
        with self._condition:
            return max((now - began for began in self._running.values()), default=0.0)

    def _end(self, key: K, now: float) -> None:
        for other, ended in list(self._ended.items()):
            if ended + self._apart_s > now:
                break
            del self._ended[other]
        self._ended.pop(key, None)
        if self._apart_s:
            self._ended[key] = now

    def _schedule(self, key: K, due: float) -> None:
        ended = self._ended.get(key)
        if ended is not None:
            due = max(due, ended + self._apart_s)
        held = self._due.get(key)
        if held is not None and held <= due:
            return
        self._due[key] = due
        if key not in self._running:
            self._order += 1
            heapq.heappush(self._heap, (due, self._order, key))
            self._condition.notify()

    def _pop(self, now: float) -> K | None:
        while self._heap and self._heap[0][0] <= now:
            due, _, key = heapq.heappop(self._heap)
            if self._due.get(key) == due and key not in self._running:
                del self._due[key]
                return key
        return None
