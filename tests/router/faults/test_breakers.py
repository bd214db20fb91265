"""A circuit breaker for each worker: it opens for the guilty one only, tries it with one request, and closes.

By what engines see (how many requests come to which of them), and by the metric. The scenarios wait for
breakers most of the time, so they run at once, each with a router of its own: breakers remember.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable

import pytest
from tests.router.harness.bench import Bench, bench
from tests.router.harness.together import together
from tests.router.mocks.engine import MockEngine
from tests.router.mocks.plan import Plan

# A breaker opens after some failures in a row, and stays open for some seconds.
OPENS_AFTER_AT_MOST = 10
OPEN_AT_MOST = 15.0


def _hits(it: Bench, engine: MockEngine, tag: str) -> int:
    return sum(leg.engine is engine for leg in it.book.by_tag[tag])


async def _states(it: Bench) -> dict[str, str]:
    """By engine's url: the state of its breaker."""
    scrape = await it.router.scrape()
    return {s.labels["worker"]: s.labels["state"] for s in scrape.select("plait_router_breaker") if s.value}


async def _well(it: Bench, tag: str, *, times: int = 1) -> None:
    """Prompts that no client sees fail."""
    for _ in range(times):
        reply = await it.prompt(Plan(tag), streamed=False)
        assert reply.status == 200, reply.body


async def _open(it: Bench, guilty: MockEngine) -> int:
    """Prompts until the breaker of `guilty` is open; how many of them came to it (tag "open")."""
    guilty.always = "status-500"
    quiet = 0
    for _ in range(400):
        before = _hits(it, guilty, "open")
        await _well(it, "open")
        quiet = quiet + 1 if _hits(it, guilty, "open") == before else 0
        if quiet >= 25 and before:
            break
    hits = _hits(it, guilty, "open")
    assert 1 < hits <= OPENS_AFTER_AT_MOST, f"{hits} requests to an engine that fails each"
    states = await _states(it)
    assert states == {e.url: "open" if e is guilty else "closed" for e in it.engines}
    # Only the guilty one: both engines of the other side and its own neighbour go on.
    for engine in it.engines:
        if engine is not guilty:
            assert _hits(it, engine, "open") > 3, engine.name
    return hits


async def _closes(side: str, it: Bench) -> None:
    """It has recovered, and is slow: one request is the probe, the others go elsewhere until that is done."""
    guilty, _ = it.side(side)
    await _open(it, guilty)
    guilty.always = "slow-start"
    began = time.monotonic()
    while not _hits(it, guilty, "slow"):
        prompts = (it.prompt(Plan("slow"), streamed=False) for _ in range(8))
        assert {r.status for r in await asyncio.gather(*prompts)} == {200}
        assert _hits(it, guilty, "slow") <= 1, "more than one probe at a time"
        assert time.monotonic() - began < OPEN_AT_MOST, "never probed"
        await asyncio.sleep(0.05)
    guilty.always = ""
    assert set((await _states(it)).values()) == {"closed"}
    await _well(it, "closed", times=40)
    assert _hits(it, guilty, "closed") > 3, "it gets no traffic, though its probe was good"


async def _opens_again(side: str, it: Bench) -> None:
    """It fails still: a probe finds out, alone, and no client sees it."""
    guilty, _ = it.side(side)
    at_open = await _open(it, guilty)
    began = time.monotonic()
    while _hits(it, guilty, "open") == at_open:
        await _well(it, "open")
        assert time.monotonic() - began < OPEN_AT_MOST, "never probed"
        await asyncio.sleep(0.02)
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        await _well(it, "open")
        await asyncio.sleep(0.02)
    assert _hits(it, guilty, "open") == at_open + 1, "a failed probe must open the breaker again"


async def _restarted(it: Bench) -> None:
    """At the same address it is a new worker: its predecessor's failures are not its own."""
    guilty, _ = it.side("decode")
    await _open(it, guilty)
    guilty.always = ""
    guilty.reborn()
    began = time.monotonic()
    while not _hits(it, guilty, "new"):
        await _well(it, "new")
        assert time.monotonic() - began < it.within(3), "still kept out"
        await asyncio.sleep(0.02)


async def _refusals(it: Bench) -> None:
    """A client whose requests are wrong takes no engine away from the others."""
    for number in range(40):
        refused = await it.prompt(Plan("wrong", decode="status-400"), streamed=bool(number % 2))
        assert refused.status == 400
    await _innocent(it)


async def _leavers(it: Bench) -> None:
    """Nor do clients that leave, whatever their engines were doing."""
    for number in range(20):
        plan = Plan("leaves", prefill="wait") if number % 2 else Plan("leaves", events=1000, pause=0.01)
        task = asyncio.create_task(it.prompt(plan, streamed=True))
        await asyncio.sleep(0.03)
        task.cancel()
    await it.idle()
    await _innocent(it)


async def _innocent(it: Bench) -> None:
    assert set((await _states(it)).values()) == {"closed"}
    await _well(it, "right", times=40)
    assert all(_hits(it, engine, "right") > 3 for engine in it.engines)


SCENARIOS: dict[str, Callable[[Bench], Awaitable[None]]] = {
    "prefill's opens, is probed and closes": functools.partial(_closes, "prefill"),
    "decode's opens, is probed and closes": functools.partial(_closes, "decode"),
    "prefill's opens again": functools.partial(_opens_again, "prefill"),
    "decode's opens again": functools.partial(_opens_again, "decode"),
    "an engine that was restarted starts with a clean sheet": _restarted,
    "refusals open none": _refusals,
    "clients that leave open none": _leavers,
}


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> dict[str, str]:
    chosen = [
        item.callspec.params["name"]
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    ]

    async def on_a_bench(scenario: Callable[[Bench], Awaitable[None]]) -> None:
        async with bench(flags=()) as it:
            await scenario(it)
            await it.nothing_left()

    return asyncio.run(together({name: functools.partial(on_a_bench, SCENARIOS[name]) for name in chosen}))


@pytest.mark.parametrize("name", SCENARIOS)
def test_breaker(outcomes: dict[str, str], name: str) -> None:
    if outcomes[name]:
        pytest.fail(outcomes[name], pytrace=False)
