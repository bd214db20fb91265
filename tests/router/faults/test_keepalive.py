"""Connections to engines are used again, if they are surely good; no answer meets a stranger."""

from __future__ import annotations

import asyncio

import pytest
from tests.router.harness.bench import Bench, complete
from tests.router.mocks.plan import Plan

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_connections_are_used_again(it: Bench) -> None:
    before = sum(e.accepted for e in it.engines)
    for number in range(40):
        assert (await it.prompt(streamed=bool(number % 2))).status == 200
    opened = sum(e.accepted for e in it.engines) - before
    assert opened <= 12, f"{opened} connections for 80 legs one after the other"


@pytest.mark.parametrize("streamed", [False, True])
async def test_engine_that_closes_after_each_answer_costs_no_request(it: Bench, streamed: bool) -> None:
    """The FIN comes after the answer and without a word before: the connection must not be used again."""
    for engine in it.engines:
        engine.close_after_answer = True
    try:
        for _ in range(30):
            assert (await it.prompt(streamed=streamed)).status == 200
        for _ in range(5):
            replies = await asyncio.gather(*(it.prompt(streamed=streamed) for _ in range(10)))
            assert {r.status for r in replies} == {200}
    finally:
        for engine in it.engines:
            engine.close_after_answer = False


async def test_engine_that_resets_reused_connections_costs_no_request(it: Bench) -> None:
    """An engine's keep-alive time ends just as the router sends: the next try is on a fresh connection."""
    for _ in range(4):
        await it.prompt(streamed=False)
    for engine in it.engines:
        engine.reset_when_reused = True
    try:
        for number in range(20):
            reply = await it.prompt(streamed=bool(number % 2))
            assert reply.status == 200, reply.body
    finally:
        for engine in it.engines:
            engine.reset_when_reused = False
    assert sum(e.resets for e in it.engines) or sum(e.accepted for e in it.engines) > 20


async def test_second_answer_that_nobody_asked_for_reaches_nobody(it: Bench) -> None:
    for number in range(20):
        bad = Plan(f"poison-{number}", decode="two-answers")
        reply = await it.prompt(bad, streamed=False)
        assert complete(reply, bad, streamed=False) or reply.status == 502
        assert b"poison" not in reply.body
        good = Plan(f"next-{number}")
        replies = await asyncio.gather(*(it.prompt(good, streamed=False) for _ in range(4)))
        assert all(complete(r, good, streamed=False) for r in replies), [r.body for r in replies]


@pytest.mark.parametrize("streamed", [False, True])
async def test_slow_bytes_are_no_fault(it: Bench, streamed: bool) -> None:
    """An answer in pieces of 7 bytes arrives as it is, also cut inside its events."""
    before = await it.router.scrape()
    plan = Plan("drip", decode="drip-body", events=2)
    reply = await it.prompt(plan, streamed=streamed)
    assert complete(reply, plan, streamed=streamed), reply.body
    after = await it.router.scrape()
    name = "plait_router_leg_failures_total"
    assert before.total(name) == after.total(name)
