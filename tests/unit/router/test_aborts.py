"""Abort messages: at once, again, and never in anybody's way."""

from __future__ import annotations

import time
from typing import Any

import pytest
from aiohttp import web
from tests.unit.router.asking import count
from tests.unit.router.conftest import Lab, RunningRouter, brief
from tests.unit.router.stub_engine import StubEngine

from plait.router import aborts as module
from plait.router.leg import Leg
from plait.telemetry import metrics as names


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REPEATS", (0.1, 0.1))


def leg(router: RunningRouter, *rids: str) -> Leg:
    worker = router.state.workers.worker(router.prefill.url)
    assert worker is not None
    owner: Any = None
    config = router.state.config
    return Leg(worker, rids or ("r",), owner, config.deadlines, 1000, time.monotonic, relay=False)


def told(router: RunningRouter, result: str) -> float:
    return count(router, names.ABORTS, "prefill", router.prefill.url, result)


async def test_said_at_once_and_again(router: RunningRouter) -> None:
    """An engine that has not entered the request yet forgets the first message."""
    began = time.monotonic()
    router.state.aborts.send(leg(router))
    assert time.monotonic() - began < 0.1
    assert router.state.aborts.under_way == 1
    await router.until(lambda: len(router.prefill.aborts) == 3)
    assert [rid for rid, _ in router.prefill.aborts] == ["r", "r", "r"]
    assert router.prefill.aborts[0][1] - began < router.within(0.1)
    # The engine has heard the last one a moment before the router reads that it has.
    await router.until(lambda: router.state.aborts.under_way == 0)
    assert told(router, "taken") == 3


async def test_each_prompt_of_a_batch_is_named(router: RunningRouter) -> None:
    names = [f"r-{i}" for i in range(40)]
    router.state.aborts.send(leg(router, *names))
    await router.until(lambda: len(router.prefill.aborts) >= 40)
    assert {rid for rid, _ in router.prefill.aborts[:40]} == set(names)


async def test_dead_engine_is_not_told_again(router: RunningRouter) -> None:
    await router.prefill.stop()
    router.state.aborts.send(leg(router))
    await router.until(lambda: told(router, "unreachable") == 1)
    await router.until(lambda: router.state.aborts.under_way == 0)
    assert told(router, "unreachable") == 1


async def test_engine_that_does_not_answer_is_given_up(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    async def silence(engine: StubEngine, request: web.Request) -> web.Response:
        engine.aborts.append(((await request.json())["rid"], time.monotonic()))
        await engine.aborted.wait()
        return web.Response()

    monkeypatch.setattr(StubEngine, "_abort", silence)
    router = await lab.router(deadlines=brief(abort=0.2))
    router.state.aborts.send(leg(router))
    await router.until(lambda: told(router, "unreachable") == 1)
    await router.until(lambda: router.state.aborts.under_way == 0)
    assert len(router.prefill.aborts) == 1


async def test_engine_that_refuses_is_counted_and_told_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(engine: StubEngine, request: web.Request) -> web.Response:
        return web.Response(status=500)

    monkeypatch.setattr(StubEngine, "_abort", refuse)
    router = await lab.router()
    router.state.aborts.send(leg(router))
    await router.until(lambda: told(router, "refused") == 3)
    assert "abort of r answered 500" in caplog.text


async def test_engines_key_is_sent(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str | None] = []

    async def note(engine: StubEngine, request: web.Request) -> web.Response:
        sent.append(request.headers.get("authorization"))
        return web.Response()

    monkeypatch.setattr(StubEngine, "_abort", note)
    router = await lab.router(engine_api_key="engine")
    router.state.aborts.send(leg(router))
    await router.until(lambda: bool(sent))
    assert sent[0] == "Bearer engine"


async def test_close_lets_messages_arrive_and_says_none_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_REPEATS", (30.0,))
    router = await lab.router()
    router.state.aborts.send(leg(router, "a"))
    router.state.aborts.send(leg(router, "b"))
    began = time.monotonic()
    await router.state.aborts.close()
    assert time.monotonic() - began < router.within(1)
    assert sorted(rid for rid, _ in router.prefill.aborts) == ["a", "b"]
    assert router.state.aborts.under_way == 0
