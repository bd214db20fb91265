"""The router's own life: which requests are under way, and how it ends without cutting them off."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Stoppable(Protocol):
    """A request under way."""

    def stop(self) -> None:
        """End now."""


class Lifecycle:
    """Shared by all requests of one router."""

    def __init__(self) -> None:
        self.draining = False
        self._running: set[Stoppable] = set()
        self._waiting: asyncio.Event | None = None

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        return len(self._running)

    def add(self, request: Stoppable) -> None:
        """`request` has come; it is told to stop when the router has to end."""
        self._running.add(request)

    def discard(self, request: Stoppable) -> None:
        """It has ended."""
        self._running.discard(request)
        if self._waiting is not None and not self._running:
            self._waiting.set()

    async def drain(self, *, seconds: float, grace: float = 2.0) -> bool:
        """Take no new requests, and wait until none is under way.

        After `seconds` the rest is told to end, which takes at most `grace` more. Returns whether all
        requests ended by themselves.
        """
        self.draining = True
        if await self._until_idle(seconds):
            return True
        for request in list(self._running):
            request.stop()
        await self._until_idle(grace)
        return False

    async def _until_idle(self, seconds: float) -> bool:
        idle = self._waiting = asyncio.Event()
        if not self._running:
            return True
        try:
            async with asyncio.timeout(seconds):
                await idle.wait()
        except TimeoutError:
            return False
        return True
