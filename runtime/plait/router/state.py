"""What the routes of one router share, and how it is opened and closed."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp

from plait.router.aborts import Aborts
from plait.router.config import RouterConfig
from plait.router.lifecycle import Lifecycle
from plait.router.metrics import RouterMetrics
from plait.router.upstream import open_session
from plait.router.workers import Registry


@dataclass(frozen=True)
class RouterState:
    """Everything a route needs."""

    config: RouterConfig
    session: aiohttp.ClientSession
    workers: Registry
    metrics: RouterMetrics
    aborts: Aborts
    lifecycle: Lifecycle


@contextlib.asynccontextmanager
async def open_state(config: RouterConfig) -> AsyncIterator[RouterState]:
    """A router's state for as long as the block runs; polls the engines meanwhile."""
    async with open_session(config) as session, Registry(config, session) as workers:
        metrics = RouterMetrics()
        metrics.watch(workers)
        aborts = Aborts(session, config, metrics)
        try:
            yield RouterState(config, session, workers, metrics, aborts, Lifecycle())
        finally:
            await aborts.close()
