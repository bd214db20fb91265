"""Requests that no worker has room for: they wait their turn, for so long and so many, and can leave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import Any

import pytest
from aiohttp import web
from tests.unit.router.asking import CHAT, CHAT_PATH, count, error_of, outcomes
from tests.unit.router.conftest import Lab, RunningRouter, brief
from tests.unit.router.stub_engine import Seen, StubEngine, answer, status, wait_for_ever

from plait.router.exchange import Exchange
from plait.telemetry import metrics as names


class Gate:
    """A decode engine that answers when the test says so."""

    def __init__(self) -> None:
        self._open = asyncio.Event()

    def open(self) -> None:
        self._open.set()

    async def __call__(self, engine: StubEngine, request: web.Request, seen: Seen) -> web.StreamResponse:
        await self._open.wait()
        return await answer(engine, request, seen)


class Line:
    """A router with room for one request at a time, whose engine is busy with the first."""

    def __init__(self, router: RunningRouter) -> None:
        self.router = router
        self.gate = Gate()
        self.tasks: list[asyncio.Task[tuple[int, bytes]]] = []

    @property
    def waiting(self) -> int:
        return self.router.state.workers.line.waiting

    def ask(self, **fields: Any) -> asyncio.Task[tuple[int, bytes]]:
        task = asyncio.create_task(self.router.post(CHAT_PATH, CHAT | fields))
        self.tasks.append(task)
        return task

    async def join(self, **fields: Any) -> asyncio.Task[tuple[int, bytes]]:
        """One more that waits."""
        before = self.waiting
        task = self.ask(**fields)
        await self.router.until(lambda: self.waiting == before + 1)
        return task

    @property
    def served(self) -> list[str]:
        """Who came to the engine, in order."""
        return [p["user"] for p in self.router.decode.prompts if "user" in p]


async def busy(lab: Lab, **settings: Any) -> Line:
    line = Line(await lab.router(**({"worker_limit": 1} | settings)))
    line.router.decode.behave = line.gate
    line.ask()
    await line.router.until(lambda: bool(line.router.decode.seen))
    return line


async def test_second_request_waits_for_the_first(lab: Lab) -> None:
    line = await busy(lab)
    second = await line.join()
    assert len(line.router.decode.seen) == 1
    await line.router.board.refresh()
    assert [r.queued for r in line.router.board.reports] == [1]
    await asyncio.sleep(0.1)
    line.gate.open()
    assert (await second)[0] == 200
    waits = line.router.state.metrics.tallies.timing(names.QUEUE_SECONDS)
    assert sum(waits.counts) == 1, "only those that waited count"
    assert 0.1 <= waits.sum < line.router.within(1.0)


async def test_full_line_says_when_to_come_again(lab: Lab) -> None:
    line = await busy(lab, queue_limit=1)
    waiting = await line.join()
    async with line.router.http.post(line.router.url + CHAT_PATH, json=CHAT) as response:
        assert response.status == 429
        assert int(response.headers["retry-after"]) >= 1
        error = error_of(await response.read())
    assert (error["code"], error["type"]) == ("queue_full", "rate_limit_error")
    assert outcomes(line.router, "queue_full") == 1
    line.gate.open()
    assert (await waiting)[0] == 200


async def test_line_of_no_places(lab: Lab) -> None:
    line = await busy(lab, queue_limit=0)
    assert (await line.router.post(CHAT_PATH, CHAT))[0] == 429
    line.gate.open()
    assert (await line.tasks[0])[0] == 200
    assert (await line.router.post(CHAT_PATH, CHAT))[0] == 200


async def test_wait_has_a_deadline(lab: Lab) -> None:
    line = await busy(lab, deadlines=brief(queue=0.3))
    began = time.monotonic()
    async with line.router.http.post(line.router.url + CHAT_PATH, json=CHAT) as response:
        assert 0.25 < time.monotonic() - began < line.router.within(0.6)
        assert response.status == 503
        assert int(response.headers["retry-after"]) >= 1
        assert error_of(await response.read())["code"] == "queue_timeout"
    assert outcomes(line.router, "queue_timeout") == 1
    assert line.waiting == 0
    assert len(line.router.decode.seen) == 1


async def test_wait_is_within_the_time_of_the_request(lab: Lab) -> None:
    line = await busy(lab, deadlines=brief(total=0.3))
    code, body = await line.router.post(CHAT_PATH, CHAT)
    assert code == 504
    assert error_of(body)["code"] == "total_timeout"
    assert line.waiting == 0


async def test_client_that_leaves_frees_its_place(lab: Lab) -> None:
    line = await busy(lab, queue_limit=1)
    leaving = await line.join()
    leaving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await leaving
    await line.router.until(lambda: line.waiting == 0)
    assert outcomes(line.router, "client_gone") == 1
    staying = await line.join()
    line.gate.open()
    assert (await staying)[0] == 200
    assert len(line.router.decode.seen) == 2
    await line.router.until_idle()


async def test_client_that_leaves_just_as_its_turn_comes_gives_its_place_back(lab: Lab) -> None:
    line = await busy(lab)
    await line.join()
    state = line.router.state
    [waiting] = [e for e in state.lifecycle._running if isinstance(e, Exchange) and e._place is not None]
    workers = list(state.workers.workers)
    for worker in workers:
        worker.limit = 2
    state.workers.line.kick()
    waiting.client.lost()
    await asyncio.sleep(0.02)
    assert sorted(w.in_flight for w in workers) == [0, 1], "prefill has done its part for the first"
    assert len(line.router.decode.seen) == 1
    line.gate.open()
    assert (await line.tasks[0])[0] == 200
    line.tasks[1].cancel()
    await asyncio.gather(line.tasks[1], return_exceptions=True)


async def test_higher_priority_goes_first_and_engines_get_it_too(lab: Lab) -> None:
    line = await busy(lab)
    for user, priority in (("low", 0), ("high", 5), ("higher", 7)):
        await line.join(user=user, priority=priority)
    line.gate.open()
    await asyncio.gather(*line.tasks)
    assert line.served == ["higher", "high", "low"]
    assert [p["priority"] for p in line.router.decode.prompts[1:]] == [7, 5, 0]


async def test_short_request_goes_before_a_long_one_that_came_just_before(lab: Lab) -> None:
    line = await busy(lab)
    await line.join(user="long", padding="x" * (4 << 20))
    await line.join(user="short")
    line.gate.open()
    await asyncio.gather(*line.tasks)
    assert line.served == ["short", "long"]


async def test_failed_request_lets_the_next_one_on(lab: Lab) -> None:
    line = await busy(lab, retries=0)
    second = await line.join()
    line.router.prefill.behave, line.router.decode.behave = status(400, "no"), wait_for_ever
    third = await line.join()
    line.gate.open()
    assert (await second)[0] == 400
    assert (await third)[0] == 400


async def test_worker_that_comes_takes_from_the_line(lab: Lab) -> None:
    line = await busy(lab)
    second = await line.join()
    other = await lab.engine("decode")
    async with line.router.http.post(
        line.router.admin_url + "/api/v1/workers", json={"side": "decode", "url": other.url}
    ) as response:
        assert response.status == 201, await response.read()
    # Prefill has done its part: only decode was in the way.
    assert (await asyncio.wait_for(second, 10))[0] == 200
    assert len(other.seen) == 1
    line.gate.open()


async def test_router_that_ends_tells_those_who_wait(lab: Lab) -> None:
    line = await busy(lab)
    second = await line.join()
    assert await line.router.state.lifecycle.drain(seconds=0.05) is False
    for task in (line.tasks[0], second):
        code, body = await task
        assert code == 503
        assert json.loads(body)["error"]["code"] == "draining"
    assert line.waiting == 0
    assert len(line.router.decode.seen) == 1


async def test_no_pair_at_all_is_not_waited_for(lab: Lab) -> None:
    line = await busy(lab)
    await line.router.decode.stop()
    await line.router.until(lambda: not line.router.state.workers.pairs())
    began = time.monotonic()
    code, body = await line.router.post(CHAT_PATH, CHAT)
    assert time.monotonic() - began < line.router.within(0.3)
    assert code == 503
    assert error_of(body)["code"] == "no_pair"


@pytest.mark.parametrize("n", [1, 3])
async def test_limit_counts_engine_requests(lab: Lab, n: int) -> None:
    """A request of several samples takes as many places, and begins when one is free."""
    router = await lab.router(worker_limit=2)
    router.decode.behave = wait_for_ever
    first = asyncio.create_task(router.post(CHAT_PATH, CHAT | {"n": n}))
    await router.until(lambda: len(router.decode.seen) == n)
    second = asyncio.create_task(router.post(CHAT_PATH, CHAT))
    line = router.state.workers.line
    await router.until(lambda: line.waiting == int(n == 3) and len(router.decode.seen) == n + (n == 1))
    for task in (first, second):
        task.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    await router.until_idle()
    assert count(router, names.REQUESTS, CHAT_PATH, "client_gone") == 2
