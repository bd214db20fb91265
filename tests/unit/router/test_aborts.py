"""Abort messages: at once, again, and never in anybody's way."""

from __future__ import annotations

import asyncio
import time

import pytest
from multidict import CIMultiDict
from tests.unit.router.conftest import Lab, RunningRouter

from plait.router import aborts as module
from plait.router.leg import FailureKind, Leg, LegError


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REPEATS", (0.1, 0.1))


def leg(router: RunningRouter, *rids: str) -> Leg:
    worker = router.state.workers.workers[0]
    return Leg(worker, "/generate", CIMultiDict({"authorization": "Bearer k"}), b"{}", rids=rids or ("r",))


def count(router: RunningRouter, result: str) -> float:
    value = router.state.metrics.registry.get_sample_value(
        "plait_router_aborts_total", {"side": "prefill", "worker": router.prefill.url, "result": result}
    )
    return value or 0.0


async def test_said_at_once_and_again(router: RunningRouter) -> None:
    """An engine that has not entered the request yet forgets the first message."""
    began = time.monotonic()
    router.state.aborts.send(leg(router))
    assert time.monotonic() - began < 0.1
    await router.until(lambda: len(router.prefill.aborts) == 3)
    assert [rid for rid, _ in router.prefill.aborts] == ["r", "r", "r"]
    assert router.prefill.aborts[0][1] - began < router.within(0.1)
    assert count(router, "taken") == 3


async def test_each_prompt_of_a_batch_is_named(router: RunningRouter) -> None:
    names = [f"r-{i}" for i in range(40)]
    router.state.aborts.send(leg(router, *names))
    await router.until(lambda: len(router.prefill.aborts) >= 40)
    assert {rid for rid, _ in router.prefill.aborts[:40]} == set(names)


async def test_dead_engine_is_not_told_again(router: RunningRouter) -> None:
    await router.prefill.stop()
    router.state.aborts.send(leg(router))
    await router.until(lambda: count(router, "unreachable") == 1)
    await asyncio.sleep(0.3)
    assert count(router, "unreachable") == 1


async def test_lingering_leg_that_ends_is_left_alone(router: RunningRouter) -> None:
    async def late() -> bytes:
        await asyncio.sleep(0.05)
        return b""

    task = asyncio.create_task(late())
    router.state.aborts.linger(leg(router), task, seconds=1.0)
    await asyncio.wait_for(task, 1)
    await asyncio.sleep(0.05)
    assert not router.prefill.aborts


async def test_lingering_leg_that_does_not_end_is_aborted(router: RunningRouter) -> None:
    task: asyncio.Task[bytes] = asyncio.create_task(asyncio.sleep(60, b""))
    router.state.aborts.linger(leg(router), task, seconds=0.1)
    await router.until(lambda: bool(router.prefill.aborts))
    assert task.cancelled()


async def test_lingering_leg_that_fails_is_counted(router: RunningRouter) -> None:
    async def fail() -> bytes:
        raise LegError(leg(router).side, FailureKind.BROKEN, "late")

    router.state.aborts.linger(leg(router), asyncio.create_task(fail()), seconds=1.0)
    labels = {"side": "prefill", "worker": router.prefill.url, "kind": "broken"}
    await router.until(
        lambda: router.state.metrics.registry.get_sample_value("plait_router_leg_failures_total", labels) == 1
    )


async def test_close_lets_messages_arrive_and_says_none_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_REPEATS", (30.0,))
    router = await lab.router()
    router.state.aborts.send(leg(router))
    router.state.aborts.linger(leg(router, "l"), asyncio.create_task(asyncio.sleep(60, b"")), seconds=60.0)
    began = time.monotonic()
    await router.state.aborts.close()
    assert time.monotonic() - began < router.within(1)
    assert {rid for rid, _ in router.prefill.aborts} == {"r", "l"}
