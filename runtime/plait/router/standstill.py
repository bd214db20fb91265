"""Deadlines that do not hold the router's own standstill against others.

A process can stand still: its container has used up its share of the CPU, its machine was suspended, another
callback took long. When it goes on, its timers are due at once, before it has read what came meanwhile. So
a deadline that is noticed late is given, once, a moment in which to read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

# Seconds: later than this was no usual turn of the loop; also the moment that is given.
STANDSTILL = 0.1


class Deadline:
    """Calls `late` after so many `seconds` (and the moment, where the loop stood still), unless cancelled."""

    __slots__ = ("_due", "_forgiven", "_handle", "_late", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, late: Callable[[], None]) -> None:
        self._loop = loop
        self._late = late
        self._due = loop.time() + seconds
        self._forgiven = False
        self._handle = loop.call_later(seconds, self._fire)

    def cancel(self) -> None:
        """Call nothing any more."""
        self._handle.cancel()

    def _fire(self) -> None:
        if not self._forgiven and self._loop.time() - self._due > STANDSTILL:
            self._forgiven = True
            self._handle = self._loop.call_later(STANDSTILL, self._fire)
        else:
            self._late()


class Patience:
    """`async with Patience(seconds)`: as `asyncio.timeout`, TimeoutError and all, with a `Deadline`."""

    __slots__ = ("_deadline", "_seconds", "_timeout")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timeout = asyncio.timeout(None)
        self._deadline: Deadline | None = None

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        self._deadline = Deadline(asyncio.get_running_loop(), self._seconds, self._end)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        deadline, self._deadline = self._deadline, None
        assert deadline is not None
        deadline.cancel()
        # Makes a TimeoutError of its own cancellation, and of no other.
        await self._timeout.__aexit__(kind, error, trace)

    def _end(self) -> None:
        self._timeout.reschedule(asyncio.get_running_loop().time())
