"""Health checks of real engines: dead, late and recovered ones are noticed, figures are as fresh as asked."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.unit.router.asking import count
from tests.unit.router.conftest import Lab, RunningRouter, brief
from tests.unit.router.stub_engine import StubEngine, engine_status, hang

from plait.contract.status import EngineStatus
from plait.router.workers import Worker
from plait.telemetry import metrics as names


def worker(router: RunningRouter, engine: StubEngine) -> Worker:
    found = router.state.workers.worker(engine.url)
    assert found is not None
    return found


async def test_first_poll_brings_an_engine_in(lab: Lab) -> None:
    prefill, decode = await lab.engine("prefill"), await lab.engine("decode")
    decode.status_delay = 0.2
    router = await lab.router(prefill, decode, ready=False)
    assert router.state.workers.pick(None) is None
    assert "not been read yet" in router.state.workers.reasons()[decode.url]
    await router.until(lambda: bool(router.state.workers.pairs()))


async def test_dead_engine_leaves_rotation_and_comes_back_within_two_seconds(lab: Lab) -> None:
    # As in production, but for the interval the tests have: the default has to keep the promise.
    router = await lab.router(poll_interval=0.5)
    began = time.monotonic()
    await router.decode.stop()
    await router.until(lambda: not router.state.workers.pairs())
    assert time.monotonic() - began < router.within(2.0)
    reason = router.state.workers.reasons()[router.decode.url]
    assert "cannot be reached" in reason
    assert not worker(router, router.decode).reachable
    await router.decode.start()
    began = time.monotonic()
    await router.until(lambda: bool(router.state.workers.pairs()))
    assert time.monotonic() - began < router.within(2.0)
    assert worker(router, router.decode).reachable


async def test_engine_that_hangs_is_suspect_then_out_then_back(lab: Lab) -> None:
    router = await lab.router(poll_misses=3, deadlines=brief(status=0.3))
    late = worker(router, router.decode)
    router.decode.status_delay = 60.0
    await router.until(lambda: late.misses == 1)
    assert late.suspect
    assert not late.trouble
    await router.until(lambda: bool(late.trouble))
    assert "within 0.3 s" in late.trouble
    assert late.misses == 3
    router.decode.status_delay = 0.0
    await router.until(lambda: not late.trouble)
    assert not late.suspect


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (None, "plugin is not loaded"),
        (engine_status("prefill", wire_hash="wire-a", cp=1), "it is a prefill engine, listed as decode"),
        (engine_status("decode", wire_hash="", cp=1), "wire_hash is empty"),
        (engine_status("decode", wire_hash="wire-b", cp=1), "no prefill engine has its contract wire-b"),
    ],
)
async def test_engines_that_cannot_serve_are_named(
    lab: Lab, status: EngineStatus | None, reason: str
) -> None:
    prefill, decode = await lab.engine("prefill"), await lab.engine("decode")
    decode.status = status
    router = await lab.router(prefill, decode, ready=False)
    await router.until(lambda: all(w.reachable for w in router.state.workers.workers))
    assert router.state.workers.pick(None) is None
    assert reason in router.state.workers.reasons()[decode.url]
    # The one that could serve says what it lacks.
    assert router.state.workers.reasons()[prefill.url]


@pytest.mark.parametrize("body", [b'{"role": "decode", "layout": "plain", "cp": "many"}', b"{", b"[]"])
async def test_status_of_another_form_is_named(lab: Lab, body: bytes) -> None:
    prefill, decode = await lab.engine("prefill"), await lab.engine("decode")
    decode.status_raw = body
    router = await lab.router(prefill, decode, ready=False)
    await router.until(lambda: decode.status_polls > 2)
    assert "is not what this router reads: " in router.state.workers.reasons()[decode.url]
    # And it is asked on.
    decode.status_raw = None
    await router.until(lambda: bool(router.state.workers.pairs()))


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
    await router.until(lambda: worker(router, decode).reachable)
    assert "answered 401" in router.state.workers.reasons()[decode.url]
    await lab.router(prefill, decode, engine_api_key="secret")


async def test_worker_that_is_removed_is_asked_no_more(router: RunningRouter) -> None:
    router.board.directory.remove(router.decode.url)
    polls = router.decode.status_polls
    before = router.prefill.status_polls
    await router.until(lambda: router.prefill.status_polls > before + 3)
    assert router.decode.status_polls <= polls + 1
    assert not router.state.workers.pairs()


async def test_restarted_engine_is_noticed(router: RunningRouter) -> None:
    """A new process at the same address within one interval: no poll has failed."""
    prompt = {"text": "in the beginning " * 200}
    for _ in range(2):
        await router.post("/generate", prompt)
    matched = count(router, names.PREFIX_PAGES, "matched")
    assert matched
    prefill = worker(router, router.prefill)
    old = prefill.id
    assert router.prefill.status is not None
    router.prefill.status.started_at = 2.0
    await router.until(lambda: prefill.id != old)
    await router.post("/generate", prompt)
    assert count(router, names.PREFIX_PAGES, "matched") == matched


async def test_poll_goes_on_beside_requests(router: RunningRouter) -> None:
    router.prefill.behave = router.decode.behave = hang
    task = asyncio.create_task(router.post("/generate", {"text": "x"}))
    await router.until(lambda: bool(router.decode.seen))
    polls = router.decode.status_polls
    await router.until(lambda: router.decode.status_polls > polls + 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
