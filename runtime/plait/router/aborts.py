"""Telling engines to abort, beside the requests that want it: no client waits for these messages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import aiohttp

from plait.router.config import RouterConfig
from plait.router.metrics import RouterMetrics
from plait.router.upstream import Leg, LegError

log = logging.getLogger("plait.router.aborts")

ABORT_PATH = "/abort_request"
# An engine forgets an abort for a request that it has not entered yet, so it is said more than once.
_REPEATS = (0.5, 2.0)
_AT_ONCE = 16


class Aborts:
    """Abort messages under way. `close` before the session ends."""

    def __init__(self, session: aiohttp.ClientSession, config: RouterConfig, metrics: RouterMetrics) -> None:
        self._session = session
        self._config = config
        self._metrics = metrics
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()

    def send(self, leg: Leg) -> None:
        """Tell the engine of `leg` to abort it; returns at once."""
        self._start(self._abort(leg))

    def linger(self, leg: Leg, task: asyncio.Task[bytes], *, seconds: float) -> None:
        """Give a leg whose answer nobody needs any more `seconds` to end by itself, then abort it."""
        self._start(self._linger(leg, task, seconds))

    async def close(self) -> None:
        """Let the messages under way arrive (`deadlines.abort`), repeat none, and stop."""
        self._closing.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._config.deadlines.abort)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _linger(self, leg: Leg, task: asyncio.Task[bytes], seconds: float) -> None:
        closing = asyncio.create_task(self._closing.wait())
        try:
            await asyncio.wait({task, closing}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            closing.cancel()
            late = not task.done()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if late:
            log.warning("%s %s: answer still due after decode's: aborting", leg.side, leg.worker.url)
            await self._abort(leg)
        elif not task.cancelled() and isinstance(error := task.exception(), LegError):
            self._metrics.leg_failed(error, leg.worker)
            log.warning("%s %s failed after decode had finished: %s", leg.side, leg.worker.url, error)

    async def _abort(self, leg: Leg) -> None:
        taken = await self._say(leg)
        for pause in _REPEATS:
            if not taken or await self._closed_within(pause):
                return
            taken = await self._say(leg)

    async def _closed_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            return False
        return True

    async def _say(self, leg: Leg) -> bool:
        """Send the message for each prompt of `leg`; whether the engine could be reached."""
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(rid: str) -> bool:
            async with gate:
                return await self._post(leg, rid)

        return all(await asyncio.gather(*(one(rid) for rid in leg.rids)))

    async def _post(self, leg: Leg, rid: str) -> bool:
        headers = {}
        if authorization := leg.headers.get("authorization"):
            headers["authorization"] = authorization
        try:
            async with (
                asyncio.timeout(self._config.deadlines.abort),
                self._session.post(
                    leg.worker.url + ABORT_PATH, json={"rid": rid}, headers=headers
                ) as response,
            ):
                await response.read()
        except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
            self._metrics.aborted(leg.worker, "unreachable")
            log.debug("%s %s: abort of %s not delivered: %r", leg.side, leg.worker.url, rid, error)
            return False
        self._metrics.aborted(leg.worker, "taken" if response.status == 200 else "refused")
        if response.status != 200:
            log.warning("%s %s: abort of %s answered %d", leg.side, leg.worker.url, rid, response.status)
        return True
