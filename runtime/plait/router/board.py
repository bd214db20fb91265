"""What the figures, the probes and the admin API look at, whether one process serves clients or several."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from plait.router.directory import Directory
from plait.router.discovery.source import Source
from plait.router.errors import RouterError
from plait.router.metrics import render
from plait.router.registry import Registry
from plait.router.report import Report
from plait.router.tally import Row


class Board:
    """`workers` are this process's own view of the engines; `reports` those of all that serve clients.

    `ask` gets the reports; `settle` waits until all processes have taken up the directory's last change, and
    returns the pids of those that have not in time; `ended`: what those counted that are no more.
    """

    def __init__(
        self,
        *,
        workers: Registry,
        source: Source,
        directory: Directory,
        admin_api_key: str,
        ask: Callable[[], Awaitable[list[Report]]],
        settle: Callable[[], Awaitable[list[int]]],
        draining: Callable[[], bool],
        ended: Callable[[], list[Row]] = list,
        without_pair: Callable[[], int] = int,
    ) -> None:
        self.workers = workers
        self.source = source
        self.directory = directory
        self.admin_api_key = admin_api_key
        self.reports: list[Report] = []
        self._ask = ask
        self._settle = settle
        self._draining = draining
        self._ended = ended
        self._without_pair = without_pair

    @property
    def draining(self) -> bool:
        """Whether the router ends."""
        return self._draining()

    @property
    def ended(self) -> list[Row]:
        """What processes that have ended had counted."""
        return self._ended()

    async def refresh(self) -> None:
        """Ask engines and processes for what is older than the cache allows."""
        await self.workers.refresh()
        self.reports = await self._ask()

    @property
    def processes_without_pair(self) -> int:
        """Serving processes, other than this one, that no request should come to."""
        return self._without_pair()

    async def settled(self) -> None:
        """Raises RouterError (503) where a process has not taken up the last change."""
        late = await self._settle()
        if late:
            raise RouterError(
                503,
                f"Processes {late} of this router have not taken up the change yet; it is in force in the "
                "others, and reaches them as soon as they answer.",
                code="not_settled",
            )

    def render(self) -> bytes:
        """All metrics, as of the last `refresh`."""
        return render(self)
