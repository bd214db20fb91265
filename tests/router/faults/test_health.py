"""A dead engine gets no request after 2 s, and a recovered one is in rotation within 2 s."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

import pytest
import pytest_asyncio
from tests.router.harness.bench import Bench, bench, complete
from tests.router.mocks.engine import MockEngine
from tests.router.mocks.plan import Plan

pytestmark = pytest.mark.asyncio(loop_scope="module")

NOTICED_WITHIN = 2.0


class Trouble(NamedTuple):
    """How an engine fails, and how it comes back. `shown`: it leaves the rotation that /ready shows at once,
    not only the choice of requests.
    """

    begin: Callable[[MockEngine], Awaitable[object]]
    end: Callable[[MockEngine], Awaitable[object]]
    shown: bool


async def _restart(engine: MockEngine) -> None:
    await engine.stop()
    engine.reborn()
    await engine.start()


def _status(mode: str) -> Callable[[MockEngine], Awaitable[object]]:
    async def set_mode(engine: MockEngine) -> None:
        engine.status_mode = mode

    return set_mode


TROUBLES = {
    "killed": Trouble(MockEngine.stop, _restart, shown=True),
    "takes no connection": Trouble(MockEngine.clog, _restart, shown=False),
    "silent": Trouble(_status("hang"), _status("ok"), shown=False),
    "fails": Trouble(_status("500"), _status("ok"), shown=True),
    "has no plugin": Trouble(_status("404"), _status("ok"), shown=True),
}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def it() -> AsyncIterator[Bench]:
    """An engine of each side for each trouble and two that stay well; deadlines as a router has by itself."""
    number = len(TROUBLES) + 2
    async with bench(prefill=number, decode=number, flags=()) as made:
        yield made
        await made.nothing_left()


async def test_trouble_and_recovery_are_noticed(it: Bench) -> None:
    """All troubles at once, on both sides; no client notices any of it."""
    troubled = {
        engine: name
        for side in ("prefill", "decode")
        for name, engine in zip(TROUBLES, it.side(side), strict=False)
    }
    well = {e.url for e in it.engines if e not in troubled}
    asked = asyncio.create_task(_ask_all_along(it))
    it.lag.worst = 0.0
    try:
        await asyncio.gather(*(TROUBLES[name].begin(engine) for engine, name in troubled.items()))
        began = time.monotonic()
        shown = {e.url for e, name in troubled.items() if TROUBLES[name].shown}
        await _rotation(it, lambda ready: not ready & shown)
        took = time.monotonic() - began
        assert took < it.within(NOTICED_WITHIN), f"noticed after {took:.2f} s"
        await asyncio.sleep(max(0.0, began + it.within(NOTICED_WITHIN) - time.monotonic()))
        it.book.forget()
        for number in range(40):
            assert (await it.prompt(Plan("noticed"), streamed=bool(number % 2))).status == 200
        late = {troubled[leg.engine] for leg in it.book.by_tag["noticed"] if leg.engine in troubled}
        assert not late, f"still gets requests after {NOTICED_WITHIN} s: {late}"
        await _rotation(it, lambda ready: ready == well)
    finally:
        for engine, name in troubled.items():
            await TROUBLES[name].end(engine)
        ended = time.monotonic()
    await _rotation(it, lambda ready: len(ready) == len(it.engines))
    took = time.monotonic() - ended
    assert took < it.within(NOTICED_WITHIN), f"recovery was noticed after {took:.2f} s"
    asked.cancel()
    failed = await asyncio.gather(asked, return_exceptions=True)
    assert not isinstance(failed[0], AssertionError), failed[0]
    # ... and all get requests again.
    missing = set(it.engines)
    for _ in range(400):
        assert (await it.prompt(Plan("back"), streamed=False)).status == 200
        missing -= {leg.engine for leg in it.book.by_tag["back"]}
        if not missing:
            break
    assert not missing, f"in rotation, and gets nothing: {[e.name for e in missing]}"


async def test_router_with_nobody_left_says_so_at_once(it: Bench) -> None:
    await it.all_ready()
    for engine in it.side("decode"):
        await engine.stop()
    try:
        await _rotation(it, lambda ready: not ready)
        reply = await it.prompt(streamed=True)
        assert reply.status == 503
        assert reply.error["code"] == "no_pair"
        assert int(reply.headers["retry-after"]) >= 1
    finally:
        for engine in it.side("decode"):
            await engine.start()
    await it.all_ready()


async def _ask_all_along(it: Bench) -> None:
    """Prompts one after the other; AssertionError at the first that fails."""
    plan = Plan("along")
    while True:
        reply = await it.prompt(plan, streamed=True)
        assert complete(reply, plan, streamed=True), (reply.status, reply.body)
        await asyncio.sleep(0.01)


async def _rotation(it: Bench, condition: Callable[[set[str]], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition(ready := await it.router.ready_urls()):
        assert time.monotonic() < deadline, f"in rotation: {ready}"
        await asyncio.sleep(0.02)
