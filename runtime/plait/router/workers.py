"""The engines behind the router: their last status, whether they are in rotation, and what runs on them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import aiohttp
from pydantic import ValidationError

from plait.contract.status import STATUS_PATH, STATUS_VERSION, EngineStatus
from plait.router.config import RouterConfig
from plait.router.pairing import Candidate, Side, choose, pairs, reasons

log = logging.getLogger("plait.router.workers")

_NOT_ASKED = "its status has not been read yet"


class Worker:
    """One engine. `trouble` says why it is out of rotation (empty: alive, with a status of its own role)."""

    def __init__(self, url: str, side: Side, *, bootstrap_host: str = "", bootstrap_port: int = 0) -> None:
        self.url = url
        self.side = side
        self.bootstrap_host = bootstrap_host
        self.bootstrap_port = bootstrap_port
        self.status: EngineStatus | None = None
        self.trouble = _NOT_ASKED
        self.reachable = False
        self.in_flight = 0
        self.picked = 0
        self.misses = 0
        self.read_at = 0.0  # time.monotonic() of `status`
        self.asked_at = float("-inf")  # when the last poll ended, well or not

    @property
    def age(self) -> float | None:
        """Seconds since `status` was read, None before the first."""
        return None if self.status is None else time.monotonic() - self.read_at

    def candidate(self) -> Candidate:
        """This worker as pairing sees it."""
        wire = "" if self.status is None else self.status.wire_hash
        return Candidate(self.url, self.side, wire, self.trouble, self.in_flight, self.picked)

    def hold_for(self, leg: asyncio.Task[Any]) -> None:
        """Count `leg` as under way on this worker until it is done."""
        self.in_flight += 1
        leg.add_done_callback(self._let_go)

    def _let_go(self, _: object) -> None:
        self.in_flight -= 1

    def out(self, trouble: str) -> None:
        """Take the worker out of rotation until its next good poll."""
        if trouble != self.trouble:
            log.warning("%s %s leaves rotation: %s", self.side, self.url, trouble)
        self.trouble = trouble

    def take(self, status: EngineStatus) -> None:
        """A poll was answered: keep the figures, and judge whether the engine can serve its side."""
        self.status, self.read_at, self.reachable, self.misses = status, time.monotonic(), True, 0
        trouble = _judge(status, self.side)
        if trouble:
            self.out(trouble)
        elif self.trouble:
            log.info("%s %s is alive, contract %s", self.side, self.url, status.wire_hash[:12])
            self.trouble = ""


class ReadyPair(NamedTuple):
    """The two workers of one request."""

    prefill: Worker
    decode: Worker


class Registry:
    """All workers of a router; polls them for as long as it is open (`async with`)."""

    def __init__(self, config: RouterConfig, session: aiohttp.ClientSession) -> None:
        self._config = config
        self._session = session
        self._picks = 0
        self._polls: dict[str, asyncio.Task[None]] = {}
        self._loops: list[asyncio.Task[None]] = []
        self.workers: tuple[Worker, ...] = (
            *(
                Worker(t.url, Side.PREFILL, bootstrap_host=t.bootstrap_host, bootstrap_port=t.bootstrap_port)
                for t in config.prefill
            ),
            *(Worker(url, Side.DECODE) for url in config.decode),
        )
        self._by_url = {w.url: w for w in self.workers}

    async def __aenter__(self) -> Registry:
        self._loops = [asyncio.create_task(self._keep_polling(w)) for w in self.workers]
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [*self._loops, *self._polls.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def pick(self) -> ReadyPair | None:
        """The pair for the next request, None when none can serve.

        Its load is counted where its legs start (`hold_for`): let nothing else run in between.
        """
        pair = choose([w.candidate() for w in self.workers])
        if pair is None:
            return None
        self._picks += 1
        chosen = ReadyPair(self._by_url[pair.prefill], self._by_url[pair.decode])
        for worker in chosen:
            worker.picked = self._picks
        return chosen

    def reasons(self) -> Mapping[str, str]:
        """By worker address: why it serves nothing, empty when it is part of a pair."""
        return reasons([w.candidate() for w in self.workers])

    def pairs(self) -> list[ReadyPair]:
        """All pairs that can serve now."""
        found = pairs([w.candidate() for w in self.workers])
        return [ReadyPair(self._by_url[p.prefill], self._by_url[p.decode]) for p in found]

    async def refresh(self) -> None:
        """Ask each worker again whose answer is older than `status_cache`; ends in `deadlines.status`."""
        due = time.monotonic() - self._config.status_cache
        await asyncio.gather(*(self._poll(w) for w in self.workers if w.asked_at < due))

    async def _keep_polling(self, worker: Worker) -> None:
        while True:
            await self._poll(worker)
            await asyncio.sleep(self._config.poll_interval)

    async def _poll(self, worker: Worker) -> None:
        """One poll; callers that come while one is under way share it."""
        task = self._polls.get(worker.url)
        if task is None:
            task = self._polls[worker.url] = asyncio.create_task(self._ask(worker))
            task.add_done_callback(lambda _: self._polls.pop(worker.url, None))
        await asyncio.shield(task)

    async def _ask(self, worker: Worker) -> None:
        headers = {"accept": "application/json"}
        if self._config.engine_api_key:
            headers["authorization"] = f"Bearer {self._config.engine_api_key}"
        try:
            async with asyncio.timeout(self._config.deadlines.status):
                async with self._session.get(worker.url + STATUS_PATH, headers=headers) as response:
                    body = await response.read()
        except TimeoutError:
            worker.reachable = False
            worker.misses += 1
            if worker.misses >= self._config.poll_misses or worker.status is None:
                worker.out(f"it did not answer {STATUS_PATH} within {self._config.deadlines.status:g} s")
        except (aiohttp.ClientError, OSError) as error:
            worker.reachable = False
            worker.out(f"it cannot be reached: {error}")
        else:
            self._read(worker, response.status, body)
        finally:
            worker.asked_at = time.monotonic()

    def _read(self, worker: Worker, http_status: int, body: bytes) -> None:
        if http_status == 404:
            worker.reachable = True
            worker.out(f"it has no {STATUS_PATH}: Plait's plugin is not loaded in that engine")
        elif http_status != 200:
            worker.reachable = True
            worker.out(f"{STATUS_PATH} answered {http_status}")
        else:
            try:
                worker.take(EngineStatus.model_validate_json(body))
            except ValidationError as error:
                worker.reachable = True
                first = error.errors()[0]
                where = ".".join(map(str, first["loc"])) or "body"
                worker.out(f"{STATUS_PATH} is not what this router reads: {where}: {first['msg']}")


def _judge(status: EngineStatus, side: Side) -> str:
    """Why an engine with this status cannot serve `side`, empty when it can."""
    if status.version != STATUS_VERSION:
        return f"its status has version {status.version}, this router reads {STATUS_VERSION}: use one Plait"
    if status.role != side:
        return f"it is a {status.role} engine, listed as {side}"
    if len(status.ranks) < status.cp:
        return f"{len(status.ranks)} of its {status.cp} ranks have reported"
    return ""
