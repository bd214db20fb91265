"""How much later than asked this machine does things, so that time limits hold on a busy one too."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator


class Lag:
    """Watches the loop of the tests, which shares its cores with the router's."""

    def __init__(self) -> None:
        self.worst = 0.0

    def within(self, seconds: float) -> float:
        """`seconds`, and what a busy machine has to be granted: ten turns of a loop, each at its latest."""
        return seconds + 10 * self.worst

    @contextlib.contextmanager
    def watched(self) -> Iterator[Lag]:
        """Watch for as long as the block runs."""
        task = asyncio.create_task(self._watch())
        try:
            yield self
        finally:
            task.cancel()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + 0.01
            await asyncio.sleep(0.01)
            self.worst = max(self.worst, loop.time() - due)
