"""Telling engines to abort, beside the requests that want it: no client waits for these messages."""

from __future__ import annotations

import asyncio
import logging

import orjson

from plait.router.config import RouterConfig
from plait.router.leg import Leg
from plait.router.metrics import RouterMetrics
from plait.router.upstream.fetch import FetchError, fetch
from plait.router.workers import Worker

log = logging.getLogger("plait.router.aborts")

ABORT_PATH = "/abort_request"
# An engine forgets an abort for a request that it has not entered yet, so it is said more than once.
_REPEATS = (0.5, 2.0)
_AT_ONCE = 16


class Aborts:
    """Abort messages under way. `close` before the pools are closed."""

    def __init__(self, config: RouterConfig, metrics: RouterMetrics) -> None:
        self._config = config
        self._metrics = metrics
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        key = config.engine_api_key
        self._headers = [(b"authorization", b"Bearer " + key.encode())] if key else []

    @property
    def under_way(self) -> int:
        """Legs whose engine is being told."""
        return len(self._tasks)

    def send(self, leg: Leg) -> None:
        """Tell the engine of `leg` to abort it; returns at once."""
        task = asyncio.create_task(self._abort(leg.worker, leg.rids))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Let the messages under way arrive (`deadlines.abort`), repeat none, and stop."""
        self._closing.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._config.deadlines.abort)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _abort(self, worker: Worker, rids: tuple[str, ...]) -> None:
        taken = await self._say(worker, rids)
        for pause in _REPEATS:
            if not taken or await self._closed_within(pause):
                return
            taken = await self._say(worker, rids)

    async def _closed_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            return False
        return True

    async def _say(self, worker: Worker, rids: tuple[str, ...]) -> bool:
        """Send the message for each prompt; whether the engine could be reached."""
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(rid: str) -> bool:
            async with gate:
                return await self._post(worker, rid)

        return all(await asyncio.gather(*(one(rid) for rid in rids)))

    async def _post(self, worker: Worker, rid: str) -> bool:
        try:
            answer = await fetch(
                worker.pool,
                "POST",
                ABORT_PATH,
                headers=self._headers,
                body=orjson.dumps({"rid": rid}),
                seconds=self._config.deadlines.abort,
            )
        except (FetchError, TimeoutError) as error:
            self._metrics.aborted(worker, "unreachable")
            log.debug("%s %s: abort of %s not delivered: %r", worker.side, worker.url, rid, error)
            return False
        self._metrics.aborted(worker, "taken" if answer.status == 200 else "refused")
        if answer.status != 200:
            log.warning("%s %s: abort of %s answered %d", worker.side, worker.url, rid, answer.status)
        return True
