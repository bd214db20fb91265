"""Workers: who is in rotation, why not, and figures that are as fresh as they say."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.unit.router.conftest import Lab, RunningRouter, brief
from tests.unit.router.stub_engine import StubEngine, engine_status, hang

from plait.contract.status import EngineStatus
from plait.router.workers import Worker


def worker(router: RunningRouter, engine: StubEngine) -> Worker:
    return next(w for w in router.state.workers.workers if w.url == engine.url)


async def test_first_poll_brings_an_engine_in(lab: Lab) -> None:
    prefill, decode = await lab.engine("prefill"), await lab.engine("decode")
    decode.status_delay = 0.2
    router = await lab.router(prefill, decode, ready=False)
    assert router.state.workers.pick() is None
    assert "not been read yet" in router.state.workers.reasons()[decode.url]
    await router.until(lambda: bool(router.state.workers.pairs()))


async def test_dead_engine_leaves_rotation_and_comes_back(router: RunningRouter) -> None:
    await router.decode.stop()
    await router.until(lambda: not router.state.workers.pairs())
    reason = router.state.workers.reasons()[router.decode.url]
    assert "cannot be reached" in reason
    assert not worker(router, router.decode).reachable
    await router.decode.start()
    await router.until(lambda: bool(router.state.workers.pairs()))
    assert worker(router, router.decode).reachable


async def test_one_late_status_is_no_death_but_several_are(lab: Lab) -> None:
    router = await lab.router(poll_misses=2, deadlines=brief(status=0.5))
    late = worker(router, router.decode)
    router.decode.status_delay = 0.7  # the deadline is 0.5
    await router.until(lambda: late.misses == 1)
    assert not late.trouble
    await router.until(lambda: bool(late.trouble))
    assert "within 0.5 s" in late.trouble
    assert late.misses == 2


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (None, "plugin is not loaded"),
        (engine_status("prefill", wire_hash="wire-a", cp=1), "it is a prefill engine, listed as decode"),
        (engine_status("unified", wire_hash="wire-a", cp=1), "it is a unified engine"),
        (engine_status("decode", wire_hash="", cp=1), "wire_hash is empty"),
        (engine_status("decode", wire_hash="wire-b", cp=1), "no prefill engine has its contract wire-b"),
        (
            engine_status("decode", wire_hash="wire-a", cp=1).model_copy(update={"version": 2}),
            "has version 2",
        ),
        (
            engine_status("decode", wire_hash="wire-a", cp=2).model_copy(update={"ranks": []}),
            "0 of its 2 ranks",
        ),
    ],
)
async def test_engines_that_cannot_serve_are_named(
    lab: Lab, status: EngineStatus | None, reason: str
) -> None:
    prefill, decode = await lab.engine("prefill"), await lab.engine("decode")
    decode.status = status
    router = await lab.router(prefill, decode, ready=False)
    await router.until(lambda: decode.status_polls > 1)
    assert router.state.workers.pick() is None
    assert reason in router.state.workers.reasons()[decode.url]
    # The one that could serve says what it lacks.
    assert router.state.workers.reasons()[prefill.url]


async def test_status_of_another_form_is_named(lab: Lab) -> None:
    prefill, decode = await lab.engine("prefill"), await lab.engine("decode")
    decode.status_raw = b'{"role": "decode", "layout": "plain", "cp": "many"}'
    router = await lab.router(prefill, decode, ready=False)
    await router.until(lambda: decode.status_polls > 1)
    assert "is not what this router reads: cp" in router.state.workers.reasons()[decode.url]


async def test_contract_that_changes_ends_the_pair(router: RunningRouter) -> None:
    router.decode.status = engine_status("decode", wire_hash="wire-b", cp=1)
    await router.until(lambda: not router.state.workers.pairs())


async def test_refresh_asks_again_only_when_stale(lab: Lab) -> None:
    router = await lab.router(poll_interval=60.0, status_cache=0.2)
    polls = router.decode.status_polls
    await asyncio.gather(*(router.state.workers.refresh() for _ in range(10)))
    assert router.decode.status_polls <= polls + 1
    await asyncio.sleep(0.25)
    before = router.decode.status_polls
    await asyncio.gather(*(router.state.workers.refresh() for _ in range(10)))
    assert router.decode.status_polls == before + 1


async def test_refresh_ends_in_time_and_ages_show(lab: Lab) -> None:
    router = await lab.router(poll_interval=60.0, status_cache=0.0, deadlines=brief(status=0.5))
    router.decode.status_delay = 60.0
    began = time.monotonic()
    await router.state.workers.refresh()
    assert 0.4 < time.monotonic() - began < router.within(0.9)
    age = worker(router, router.decode).age
    assert age is not None
    assert age > 0.4
    assert (worker(router, router.prefill).age or 99) < router.within(0.9)


async def test_key_is_sent_to_engines(lab: Lab) -> None:
    prefill, decode = await lab.engine("prefill"), await lab.engine("decode")
    decode.api_key = "secret"
    router = await lab.router(prefill, decode, ready=False)
    await router.until(lambda: decode.status_polls > 1)
    assert "answered 401" in router.state.workers.reasons()[decode.url]
    await lab.router(prefill, decode, engine_api_key="secret")


async def test_requests_go_to_all_engines_in_turn(lab: Lab) -> None:
    engines = [await lab.engine(side) for side in ("prefill", "prefill", "decode", "decode")]
    router = await lab.router(*engines, ready=False)
    await router.until(lambda: len(router.state.workers.pairs()) == 4)
    for _ in range(8):
        await router.post("/generate", {"text": "x"})
    assert [len(e.seen) for e in engines] == [4, 4, 4, 4]


async def test_busy_engine_gets_less(lab: Lab) -> None:
    engines = [await lab.engine(side) for side in ("prefill", "prefill", "decode")]
    router = await lab.router(*engines, ready=False)
    await router.until(lambda: len(router.state.workers.pairs()) == 2)
    busy, free, _ = engines
    busy.behave = hang
    slow = asyncio.create_task(router.post("/generate", {"text": "x", "return_logprob": True}))
    await router.until(lambda: bool(busy.seen or free.seen))
    taken = len(free.seen)
    for _ in range(4):
        await router.post("/generate", {"text": "x"})
    assert len(busy.seen) == 1
    assert len(free.seen) == taken + 4
    slow.cancel()
    await asyncio.gather(slow, return_exceptions=True)
