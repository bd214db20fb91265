"""Telling engines to abort, beside the requests that want it: no client waits for these messages."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from typing import Any, NamedTuple

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
_TICK = 0.1


class _Repeat(NamedTuple):
    """A message that is to be said again. `due`: loop time; `said`: how often it was repeated by then."""

    due: float
    worker: Worker
    rids: tuple[str, ...]
    said: int


class Aborts:
    """Abort messages under way. `close` before the pools are closed.

    What waits to be said again is an entry in a list, not a task: after many failures in a row there are
    thousands of them.
    """

    def __init__(self, config: RouterConfig, metrics: RouterMetrics) -> None:
        self._config = config
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[object]] = set()
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None
        # One for each repeat: within one, what was said first is due first.
        self._later: tuple[deque[_Repeat], ...] = tuple(deque() for _ in _REPEATS)
        key = config.engine_api_key
        self._headers = [(b"authorization", b"Bearer " + key.encode())] if key else []

    @property
    def under_way(self) -> int:
        """Legs whose engine is being told."""
        return len(self._tasks) + sum(map(len, self._later))

    def send(self, leg: Leg) -> None:
        """Tell the engine of `leg` to abort it; returns at once."""
        # One that has begun to answer has entered the request: once is enough.
        said = len(_REPEATS) if leg.status else 0
        self._start(self._abort(leg.worker, leg.rids, said))

    async def close(self) -> None:
        """Let the messages under way arrive (`deadlines.abort`), repeat none, and stop."""
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        for repeats in self._later:
            repeats.clear()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._config.deadlines.abort)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, object]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _abort(self, worker: Worker, rids: tuple[str, ...], said: int) -> bool:
        """Say it, and note when it is to be said again; whether the engine could be reached."""
        taken = await self._say(worker, rids)
        if taken and said < len(_REPEATS) and not self._closing:
            due = self._loop.time() + _REPEATS[said]
            self._later[said].append(_Repeat(due, worker, rids, said + 1))
            if self._timer is None:
                self._timer = self._loop.call_later(_TICK, self._tick)
        return taken

    def _tick(self) -> None:
        now = self._loop.time()
        due: dict[Worker, list[_Repeat]] = {}
        for repeats in self._later:
            while repeats and repeats[0].due <= now:
                repeat = repeats.popleft()
                due.setdefault(repeat.worker, []).append(repeat)
        for worker, its in due.items():
            self._start(self._repeat(worker, its))
        waiting = any(self._later) and not self._closing
        self._timer = self._loop.call_later(_TICK, self._tick) if waiting else None

    async def _repeat(self, worker: Worker, repeats: list[_Repeat]) -> None:
        # One after the other: nobody waits for them, and each at once would want a connection of its own.
        for repeat in repeats:
            if not await self._abort(worker, repeat.rids, repeat.said):
                return  # the engine is gone, and what it was at with it

    async def _say(self, worker: Worker, rids: tuple[str, ...]) -> bool:
        """Send the message for each prompt; whether the engine could be reached."""
        if len(rids) == 1:
            return await self._post(worker, rids[0])
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
