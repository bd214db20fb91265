"""A router that stood still itself (its CPU share used up, its machine suspended) blames no engine for it."""

from __future__ import annotations

import asyncio
import contextlib
import signal

import pytest
from tests.router.harness.bench import FIRST_BYTE, IDLE, Bench, complete, prompt_bytes
from tests.router.harness.client import Reply, Wire
from tests.router.mocks.plan import Plan

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Longer than an engine may take for its first byte, between two chunks, and for a health check.
STILL = max(FIRST_BYTE, IDLE, 1.0) + 0.6


async def _still(it: Bench) -> None:
    it.router.process.send_signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(STILL)
    finally:
        it.router.process.send_signal(signal.SIGCONT)


async def test_what_came_meanwhile_is_read_before_any_deadline_is_held_against_it(it: Bench) -> None:
    before = await it.router.scrape()
    plans = [Plan(f"still-{n}", events=40, pause=0.05) for n in range(8)]
    asked = [asyncio.create_task(it.prompt(plan, streamed=True)) for plan in plans]
    await it.until(lambda: all(_streaming(it, plan) for plan in plans), "all stream")
    await _still(it)
    replies: list[Reply] = await asyncio.gather(*asked)
    for plan, reply in zip(plans, replies, strict=True):
        assert complete(reply, plan, streamed=True), (reply.status, reply.body[-300:])
    after = await it.router.scrape()
    for name in ("plait_router_leg_failures_total", "plait_router_retries_total"):
        assert before.total(name) == after.total(name), name
    assert await it.router.ready_urls() == {engine.url for engine in it.engines}


async def test_request_whose_head_lay_unread_is_served(it: Bench) -> None:
    data = prompt_bytes(Plan("head"), streamed=False)
    with contextlib.closing(await Wire.open(it.router.port)) as wire:
        await wire.send(data[:40])
        await asyncio.sleep(0.2)
        still = asyncio.create_task(_still(it))
        await asyncio.sleep(0.3)
        await wire.send(data[40:])
        reply = await wire.reply()
        await still
    assert reply.status == 200, reply.body


def _streaming(it: Bench, plan: Plan) -> bool:
    return any(leg.sent for leg in it.book.by_tag.get(plan.tag, ()) if leg.engine.role == "decode")
