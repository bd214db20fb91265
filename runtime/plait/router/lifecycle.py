"""The router's own life: which requests are under way, and how it ends without cutting them off."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator


class Lifecycle:
    """Shared by all requests of one router. `stop` is done when what is still under way has to end now."""

    def __init__(self) -> None:
        self.draining = False
        self.in_flight = 0
        self.stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle = asyncio.Event()
        self._idle.set()

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """Count one request for as long as the block runs."""
        self.in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._idle.set()

    async def drain(self, *, seconds: float, grace: float = 2.0) -> bool:
        """Take no new requests, and wait until none is under way.

        After `seconds` the rest is told to end, which takes at most `grace` more. Returns whether all
        requests ended by themselves.
        """
        self.draining = True
        if await self._until_idle(seconds):
            return True
        if not self.stop.done():
            self.stop.set_result(None)
        await self._until_idle(grace)
        return False

    async def _until_idle(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
