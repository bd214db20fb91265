"""What the figures, the probes and the admin API look at, whether one process serves clients or several."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from plait.router.directory import Directory
from plait.router.discovery.source import Source
from plait.router.errors import RouterError
from plait.router.metrics import RouterMetrics, render
from plait.router.registry import Registry
from plait.router.report import Report


class Board:
    """`workers` are this process's own view of the engines; `reports` those of all that serve clients.

    `ask` gets the reports; `settle` waits until all processes have taken up the directory's last change, and
    returns the pids of those that have not in time.
    """

    def __init__(
        self,
        *,
        workers: Registry,
        source: Source,
        directory: Directory,
        metrics: RouterMetrics,
        admin_api_key: str,
        ask: Callable[[], Awaitable[list[Report]]],
        settle: Callable[[], Awaitable[list[int]]],
        draining: Callable[[], bool],
    ) -> None:
        self.workers = workers
        self.source = source
        self.directory = directory
        self.admin_api_key = admin_api_key
        self.reports: list[Report] = []
        self._metrics = metrics
        self._ask = ask
        self._settle = settle
        self._draining = draining

    @property
    def draining(self) -> bool:
        """Whether the router ends."""
        return self._draining()

    async def refresh(self) -> None:
        """Ask engines and processes for what is older than the cache allows."""
        await self.workers.refresh()
        self.reports = await self._ask()

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
        return render(self._metrics, self)
