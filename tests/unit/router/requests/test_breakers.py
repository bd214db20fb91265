"""Breakers and health at work: who fails gets no requests for a while, and the other one serves."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.router.asking import CHAT, CHAT_PATH, NO_POLLS, error_of
from tests.unit.router.conftest import Lab, RunningRouter, brief
from tests.unit.router.stub_engine import StubEngine, answer, hang, status, wait_for_ever

from plait.router.breaker import Breaker, BreakerRules, BreakerState
from plait.router.workers import Worker

# As in production, but that a probe may go soon.
RULES = BreakerRules(wait=0.2, jitter=0.0)


async def three(lab: Lab, **settings: object) -> tuple[RunningRouter, StubEngine, StubEngine]:
    """A router before one prefill and two decode engines, that take turns."""
    engines = [await lab.engine(side) for side in ("prefill", "decode", "decode")]
    how = {"decode_policy": "round-robin", "retries": 0} | NO_POLLS | settings
    router = await lab.router(*engines, ready=False, **how)
    await router.until(lambda: len(router.state.workers.pairs()) == 2)
    for each in router.state.workers.workers:
        each.breaker = Breaker(RULES)
        each.pool.drop_idle()
    return router, engines[1], engines[2]


def worker(router: RunningRouter, engine: StubEngine) -> Worker:
    found = router.state.workers.worker(engine.url)
    assert found is not None
    return found


async def ask(router: RunningRouter, times: int = 1) -> list[int]:
    return [(await router.post(CHAT_PATH, CHAT))[0] for _ in range(times)]


async def test_three_failures_open_it_and_the_other_serves(lab: Lab) -> None:
    router, failing, well = await three(lab)
    failing.behave = status(500, "boom")
    assert sorted(await ask(router, 6)) == [200] * 3 + [502] * 3
    assert worker(router, failing).breaker.state is BreakerState.OPEN
    assert await ask(router, 4) == [200] * 4
    assert (len(failing.seen), len(well.seen)) == (3, 7)
    assert "circuit breaker" in router.state.workers.reasons()[failing.url]


async def test_probe_decides(lab: Lab) -> None:
    router, failing, _ = await three(lab)
    failing.behave = status(500, "boom")
    await ask(router, 6)
    breaker = worker(router, failing).breaker
    await router.until(lambda: breaker.state is BreakerState.HALF_OPEN)
    # One that fails opens it again, for longer.
    codes = await ask(router, 3)
    assert codes.count(502) == 1
    assert breaker.state is BreakerState.OPEN
    assert breaker.retry_in > 0.2
    await router.until(lambda: breaker.state is BreakerState.HALF_OPEN)
    failing.behave = answer
    assert await ask(router, 4) == [200] * 4
    assert breaker.state is BreakerState.CLOSED


async def test_one_probe_at_a_time(lab: Lab) -> None:
    router, failing, _ = await three(lab)
    failing.behave = status(500, "boom")
    await ask(router, 6)
    breaker = worker(router, failing).breaker
    await router.until(lambda: breaker.state is BreakerState.HALF_OPEN)
    failing.behave = wait_for_ever
    before = len(failing.seen)
    tasks = [asyncio.create_task(router.post(CHAT_PATH, CHAT)) for _ in range(6)]
    await router.until(lambda: sum(t.done() for t in tasks) == 5)
    assert len(failing.seen) == before + 1
    # A client that leaves says nothing about the engine: the next one is the probe.
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await router.until_idle()
    failing.behave = answer
    assert await ask(router, 2) == [200] * 2
    assert breaker.state is BreakerState.CLOSED


async def test_all_open_is_told_with_the_time_to_come_again(lab: Lab) -> None:
    router, one, other = await three(lab)
    for engine in (one, other):
        engine.behave = status(500, "boom")
        worker(router, engine).breaker = Breaker(BreakerRules(wait=20.0, jitter=0.0))
    assert await ask(router, 6) == [502] * 6
    async with router.http.post(router.url + CHAT_PATH, json=CHAT) as response:
        assert response.status == 503
        assert 15 <= int(response.headers["retry-after"]) <= 20
        error = error_of(await response.read())
    assert error["code"] == "no_pair"
    assert "circuit breaker" in error["message"]
    async with router.http.get(router.url + "/ready") as response:
        assert response.status == 503


@pytest.mark.parametrize("name", ["400", "429", "503", "client left"])
async def test_what_is_no_fault_of_the_engine_opens_nothing(lab: Lab, name: str) -> None:
    router, one, other = await three(lab)
    for engine in (one, other):
        engine.behave = hang if name == "client left" else status(int(name))
    for _ in range(8):
        task = asyncio.create_task(router.post(CHAT_PATH, CHAT))
        if name == "client left":
            await router.until(lambda: any(w.in_flight for w in router.state.workers.workers))
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await router.until_idle()
    assert all(w.breaker.state is BreakerState.CLOSED for w in router.state.workers.workers)


async def test_prefill_is_judged_by_itself(lab: Lab) -> None:
    """The breaker of the healthy side stays closed, however often the other fails."""
    engines = [await lab.engine(side) for side in ("prefill", "prefill", "decode")]
    router = await lab.router(*engines, ready=False, policy="round-robin", **NO_POLLS)
    await router.until(lambda: len(router.state.workers.pairs()) == 2)
    engines[0].behave = status(500, "boom")
    assert await ask(router, 10) == [200] * 10, "tried again with the other"
    assert worker(router, engines[0]).breaker.state is not BreakerState.CLOSED
    assert worker(router, engines[1]).breaker.state is BreakerState.CLOSED
    assert worker(router, engines[2]).breaker.state is BreakerState.CLOSED
    assert len(engines[0].seen) <= 4


async def test_health_check_that_is_good_again_lets_a_probe_go(lab: Lab) -> None:
    router, failing, _ = await three(lab, poll_interval=0.1)
    worker(router, failing).breaker = Breaker(BreakerRules(wait=60.0))
    failing.behave = status(500, "boom")
    await router.until(lambda: not worker(router, failing).trouble)
    while worker(router, failing).breaker.closed:
        await ask(router)
    failing.behave = answer
    await failing.stop()
    await router.until(lambda: bool(worker(router, failing).trouble))
    await failing.start()
    await router.until(lambda: worker(router, failing).takes)
    await ask(router, 3)
    assert worker(router, failing).breaker.state is BreakerState.CLOSED


async def test_suspect_worker_gets_requests_only_when_nobody_else_can(lab: Lab) -> None:
    router, late, well = await three(lab, poll_interval=0.1, deadlines=brief(status=0.3), poll_misses=1000)
    late.status_delay = 60.0
    await router.until(lambda: worker(router, late).suspect)
    before = len(late.seen)
    assert await ask(router, 4) == [200] * 4
    assert len(late.seen) == before
    await well.stop()
    await router.until(lambda: bool(worker(router, well).trouble))
    assert await ask(router, 2) == [200] * 2
    assert len(late.seen) == before + 2
    late.status_delay = 0.0
    await router.until(lambda: not worker(router, late).suspect)


async def test_dead_worker_is_noticed_by_the_first_request(lab: Lab) -> None:
    """Before any health check: the request is tried elsewhere, and no other goes there."""
    router, dead, well = await three(lab, retries=2)
    await dead.stop()
    assert await ask(router, 6) == [200] * 6
    assert "refused a connection" in worker(router, dead).trouble
    assert len(well.seen) == 6
