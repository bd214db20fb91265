"""Active health checks: each engine is asked for its status a few times a second."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from pydantic import ValidationError

from plait.contract.status import STATUS_PATH, EngineStatus
from plait.router.config import RouterConfig
from plait.router.upstream.fetch import FetchError, fetch
from plait.router.workers import Worker

log = logging.getLogger("plait.router.health")


class Health:
    """Polls workers, each in a task of its own, until it is told to stop.

    `restarted(worker, old_id)` is called when another process answers at a worker's address.
    """

    def __init__(self, config: RouterConfig, *, restarted: Callable[[Worker, int], None]) -> None:
        self._config = config
        self._restarted = restarted
        self._loops: dict[Worker, asyncio.Task[None]] = {}
        self._polls: dict[Worker, asyncio.Task[None]] = {}
        key = config.engine_api_key
        self._headers = [(b"accept", b"application/json")]
        if key:
            self._headers.append((b"authorization", b"Bearer " + key.encode()))

    def watch(self, worker: Worker) -> None:
        """Begin to poll `worker`, at once."""
        self._loops[worker] = asyncio.create_task(self._keep_polling(worker))

    def forget(self, worker: Worker) -> None:
        """Poll it no more."""
        for tasks in (self._loops, self._polls):
            task = tasks.pop(worker, None)
            if task is not None:
                task.cancel()

    async def close(self) -> None:
        """Stop all polls."""
        tasks = [*self._loops.values(), *self._polls.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def refresh(self, workers: Iterable[Worker]) -> None:
        """Ask each worker again whose answer is older than `status_cache`; ends in `deadlines.status`."""
        due = time.monotonic() - self._config.status_cache
        await asyncio.gather(*(self._poll(w) for w in workers if w.asked_at < due))

    async def _keep_polling(self, worker: Worker) -> None:
        while True:
            began = time.monotonic()
            try:
                await self._poll(worker)
            except Exception:  # else the worker would keep its last verdict for good
                log.exception("%s %s: its health check failed in the router", worker.side, worker.url)
                worker.out("the router's own health check failed; its log says why")
            worker.pool.sweep()
            await asyncio.sleep(max(self._config.poll_interval - (time.monotonic() - began), 0.05))

    async def _poll(self, worker: Worker) -> None:
        """One poll; callers that come while one is under way share it."""
        task = self._polls.get(worker)
        if task is None:
            task = self._polls[worker] = asyncio.create_task(self._ask(worker))
            task.add_done_callback(lambda _: self._polls.pop(worker, None))
        await asyncio.shield(task)

    async def _ask(self, worker: Worker) -> None:
        seconds = self._config.deadlines.status
        try:
            answer = await fetch(worker.pool, "GET", STATUS_PATH, headers=self._headers, seconds=seconds)
        except TimeoutError:
            trouble = f"it did not answer {STATUS_PATH} within {seconds:g} s"
            worker.late(misses=self._config.poll_misses, trouble=trouble)
        except FetchError as error:
            worker.reachable = False
            worker.out(f"it cannot be reached: {error}")
        else:
            self._read(worker, answer.status, answer.body)
        finally:
            worker.asked_at = time.monotonic()
            worker.breaker.checked(healthy=not worker.trouble and not worker.suspect)

    def _read(self, worker: Worker, http_status: int, body: bytes) -> None:
        worker.reachable = True
        if http_status == 404:
            worker.out(f"it has no {STATUS_PATH}: Plait's plugin is not loaded in that engine")
        elif http_status != 200:
            worker.out(f"{STATUS_PATH} answered {http_status}")
        else:
            try:
                status = EngineStatus.model_validate_json(body)
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(map(str, first["loc"])) or "body"
                worker.out(f"{STATUS_PATH} is not what this router reads: {where}: {first['msg']}")
                return
            before = worker.id
            if worker.take(status):
                self._restarted(worker, before)
