"""What the prompt routes of one process share, and how it is opened and closed."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass

from plait.router.aborts import Aborts
from plait.router.attempt import Watch
from plait.router.config import RouterConfig
from plait.router.directory import Desired
from plait.router.engine_tls import EngineTrust
from plait.router.headers import fixed_lines
from plait.router.keys import KeyFile
from plait.router.lifecycle import Lifecycle
from plait.router.metrics import RouterMetrics
from plait.router.registry import Registry
from plait.router.retries import RetryBudget
from plait.router.tracing import Tracer, open_tracer


@dataclass(frozen=True)
class RouterState:
    """Everything a request needs. `keys` None: no client is asked for one."""

    config: RouterConfig
    workers: Registry
    metrics: RouterMetrics
    aborts: Aborts
    lifecycle: Lifecycle
    watch: Watch
    retries: RetryBudget
    keys: KeyFile | None
    tracer: Tracer
    engine_lines: bytes

    def apply(self, desired: Desired) -> None:
        """These are the workers now."""
        self.workers.withdraw(desired.withdrawn)
        self.workers.set_targets(desired.targets)


@contextlib.asynccontextmanager
async def open_state(config: RouterConfig) -> AsyncIterator[RouterState]:
    """A process's state for as long as the block runs; engines are polled as soon as they are listed."""
    keys = KeyFile(config.api_keys) if config.api_keys else None
    trust = trust_of(config)
    tracer = open_tracer(config.otlp_endpoint, sample=config.otlp_sample, instance=str(os.getpid()))
    metrics = RouterMetrics()
    async with Registry(config, connected=metrics.connected, trust=trust) as workers:
        state = RouterState(
            config=config,
            workers=workers,
            metrics=metrics,
            aborts=Aborts(config, metrics),
            lifecycle=Lifecycle(),
            watch=Watch(),
            retries=RetryBudget(),
            keys=keys,
            tracer=tracer,
            engine_lines=fixed_lines(config.engine_api_key),
        )
        polling = asyncio.create_task(_poll_files(keys, trust))
        try:
            yield state
        finally:
            polling.cancel()
            state.watch.close()
            await state.aborts.close()
            if tracer.on:
                await asyncio.to_thread(tracer.close)


def trust_of(config: RouterConfig) -> EngineTrust | None:
    """How https engines are checked, None for the system's way. Raises ConfigError."""
    if config.engine_ca or config.engine_insecure:
        return EngineTrust(ca=config.engine_ca or None, insecure=config.engine_insecure)
    return None


async def _poll_files(keys: KeyFile | None, trust: EngineTrust | None) -> None:
    """Keys and authorities are read again when their files change."""
    while keys is not None or trust is not None:
        await asyncio.sleep(0.5)
        if keys is not None:
            keys.poll()
        if trust is not None:
            trust.poll()
