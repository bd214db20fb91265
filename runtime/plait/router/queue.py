"""The waiting line of requests that no worker can take yet: bounded, with deadlines, fair to short ones.

Each process has its own. Order: higher priority first, then by virtual deadline, which is the arrival plus
the time that the request's size stands for. So a short request overtakes longer ones that came a little
earlier, and a long one is overtaken only by what comes within that (capped) time: it is never starved.
"""

from __future__ import annotations

import asyncio
import bisect
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from plait.router.errors import RouterError

T = TypeVar("T")

# Seconds of the past from which the line's pace is read; the longest wait that a client is asked for.
_RECENT = 10.0
_LONGEST_RETRY = 30


class QueueFullError(RouterError):
    """429: the line has no place left. `retry_after`: whole seconds, at least 1."""

    def __init__(self, why: str, retry_after: int) -> None:
        super().__init__(
            429,
            f"The router is busy and {why}: try again in {retry_after} s.",
            code="queue_full",
            type="rate_limit_error",
        )
        self.retry_after = retry_after


class QueueTimeoutError(RouterError):
    """503: no worker came free before the request's deadline. `retry_after`: whole seconds, at least 1."""

    def __init__(self, waited: float, retry_after: int) -> None:
        super().__init__(
            503,
            f"No worker came free within {waited:.3g} s: try again in {retry_after} s.",
            code="queue_timeout",
        )
        self.retry_after = retry_after


class Place(Generic[T]):
    """A request's place in the line. `future` gets what its `take` gave, or an error."""

    __slots__ = ("_line", "arrived", "future", "key", "kind", "size", "take", "timer")

    def __init__(
        self, line: Line[T], take: Callable[[], T | None], *, size: int, kind: str, arrived: float
    ) -> None:
        self._line = line
        self.take = take
        self.size = size
        self.kind = kind
        self.arrived = arrived
        self.future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.key: tuple[int, float, int] | None = None  # its place in the order; None: not in the line
        self.timer: asyncio.TimerHandle | None = None

    def fail(self, error: BaseException) -> None:
        """Leave the line: whoever waits for `future` gets `error`. Nothing where it was served already."""
        self._line._remove(self)
        if not self.future.done():
            self.future.set_exception(error)


class Line(Generic[T]):
    """The line of one process; for one event loop. `T` is what requests wait for: a lease on two workers.

    Bounded in requests (`max_waiting`) and in bytes of their bodies (`max_bytes`). A byte stands for
    1 / `bytes_per_second` seconds in the order, one request for `handicap` seconds at most.

    Requests of one `kind` can use the same workers: where the first of a kind can use nothing that is free,
    no other of that kind is asked. So keep the number of kinds small.
    """

    def __init__(
        self,
        *,
        max_waiting: int = 1000,
        max_bytes: int = 256 << 20,
        bytes_per_second: float = 1 << 20,
        handicap: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for name, value in (("max_waiting", max_waiting), ("max_bytes", max_bytes), ("handicap", handicap)):
            if value < 0:
                raise ValueError(f"queue {name} = {value}: give a number of at least 0")
        if bytes_per_second <= 0:
            raise ValueError(f"queue bytes_per_second = {bytes_per_second}: give a number above 0")
        self._max_waiting = max_waiting
        self._max_bytes = max_bytes
        self._rate = bytes_per_second
        self._handicap = handicap
        self._clock = clock
        self._kinds: dict[str, list[tuple[tuple[int, float, int], Place[T]]]] = {}
        self._arrivals = 0
        self._waiting = 0
        self._bytes = 0
        self._served: deque[float] = deque(maxlen=256)

    @property
    def waiting(self) -> int:
        """Requests in the line."""
        return self._waiting

    @property
    def held_bytes(self) -> int:
        """Bytes of their bodies."""
        return self._bytes

    @property
    def retry_after(self) -> int:
        """Seconds (1 .. 30) in which the line, as long as it is now, will have gone by at its recent pace."""
        now = self._clock()
        while self._served and self._served[0] < now - _RECENT:
            self._served.popleft()
        if not self._served:
            return _LONGEST_RETRY if self._waiting else 1
        pace = len(self._served) / max(now - self._served[0], 0.5)
        return max(1, min(_LONGEST_RETRY, math.ceil(self._waiting / pace)))

    async def wait(
        self,
        take: Callable[[], T | None],
        give_back: Callable[[T], None],
        *,
        size: int,
        priority: int = 0,
        deadline: float,
        kind: str = "",
    ) -> T:
        """What `take` gives, as soon as it is this request's turn: at once where nobody waits.

        `take` is asked now and at each `kick` on this request's turn, for something (counted as taken) or
        None; it must not kick. `size`: bytes of the body. `priority`: higher goes first, always. `deadline`:
        on the line's clock. Where the waiter is cancelled in the tick in which it was served, `give_back`
        gets what it was given.

        Raises QueueFullError, QueueTimeoutError, and what `take` raises.
        """
        if not self._waiting and (got := take()) is not None:
            return got
        place = self.join(take, size=size, priority=priority, deadline=deadline, kind=kind)
        try:
            return await place.future
        except BaseException:
            future = place.future
            if future.done() and not future.cancelled() and future.exception() is None:
                give_back(future.result())
            raise
        finally:
            self._remove(place)

    def join(
        self, take: Callable[[], T | None], *, size: int, priority: int = 0, deadline: float, kind: str = ""
    ) -> Place[T]:
        """A place in the line; its future may be done already. Parameters and errors as in `wait`.

        The caller awaits the future, or calls `fail`: `wait` does both.
        """
        now = self._clock()
        place = Place(self, take, size=size, kind=kind, arrived=now)
        if deadline <= now:
            raise QueueTimeoutError(0.0, self.retry_after)
        if self._full(size):
            # Workers can come free without a kick (a breaker's wait is over): those in front go first.
            self.kick()
            self._make_room(size, priority)
        self._arrivals += 1
        place.key = (-priority, now + min(size / self._rate, self._handicap), self._arrivals)
        bisect.insort(self._kinds.setdefault(kind, []), (place.key, place))
        self._waiting += 1
        self._bytes += size
        self.kick()
        if not place.future.done():
            loop = asyncio.get_running_loop()
            place.timer = loop.call_later(deadline - now, self._expire, place)
        return place

    def kick(self) -> None:
        """Offer what is free to the line, in order. Call it when a lease ends and when a worker comes."""
        if not self._waiting:
            return
        stuck: set[str] = set()
        while len(stuck) < len(self._kinds):
            _, place = min(line[0] for kind, line in self._kinds.items() if kind not in stuck)
            if place.future.done():  # cancelled, and its waiter has not run since
                self._remove(place)
                continue
            try:
                got = place.take()
            except Exception as error:
                place.fail(error)
                continue
            if got is None:
                stuck.add(place.kind)
                continue
            self._remove(place)
            self._served.append(self._clock())
            place.future.set_result(got)

    def _full(self, size: int) -> bool:
        return self._waiting >= self._max_waiting or self._bytes + size > self._max_bytes

    def _make_room(self, size: int, priority: int) -> None:
        """Send the last of lower priority away where that makes room. Raises QueueFullError."""
        while self._full(size):
            last = max((line[-1] for line in self._kinds.values()), default=None)
            if last is None or -last[0][0] >= priority or size > self._max_bytes:
                raise self._full_error()
            last[1].fail(self._full_error())

    def _full_error(self) -> QueueFullError:
        return QueueFullError(
            f"{self._waiting} requests ({self._bytes >> 20} MiB) wait already", self.retry_after
        )

    def _expire(self, place: Place[T]) -> None:
        place.fail(QueueTimeoutError(self._clock() - place.arrived, self.retry_after))

    def _remove(self, place: Place[T]) -> None:
        """Take a place out of the line; nothing where it is out already."""
        if place.timer is not None:
            place.timer.cancel()
            place.timer = None
        if place.key is None:
            return
        line = self._kinds[place.kind]
        del line[bisect.bisect_left(line, place.key, key=_key)]
        if not line:
            del self._kinds[place.kind]
        place.key = None
        self._waiting -= 1
        self._bytes -= place.size


def _key(entry: tuple[tuple[int, float, int], Any]) -> tuple[int, float, int]:
    return entry[0]
