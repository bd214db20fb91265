"""Clients that leave: both legs are closed and both engines told to abort, and nobody is blamed."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import NamedTuple

import pytest
from tests.router.harness.bench import Bench, prompt_bytes
from tests.router.harness.client import Wire
from tests.router.mocks.answers import CHAT, COMPLETIONS, GENERATE
from tests.router.mocks.book import ANSWERED, CLOSED
from tests.router.mocks.plan import Plan

pytestmark = pytest.mark.asyncio(loop_scope="session")

ABORT_WITHIN = 0.2


class Leaving(NamedTuple):
    """When a client leaves, and what its engines do until then. `events`: parts of the stream it reads."""

    streamed: bool
    path: str
    plan: Plan
    events: int = 0


LEAVINGS = {
    "whole, in prefill": Leaving(False, CHAT, Plan(prefill="wait")),
    "whole, in decode": Leaving(False, COMPLETIONS, Plan(decode="hang")),
    "streamed, in prefill": Leaving(True, GENERATE, Plan(prefill="wait")),
    "streamed, in decode": Leaving(True, CHAT, Plan(decode="hang")),
    "streamed, after the headers": Leaving(True, CHAT, Plan(decode="hang-after")),
    "streamed, midway": Leaving(True, CHAT, Plan(events=10_000, pause=0.01), events=5),
    "streamed, midway, fast": Leaving(True, COMPLETIONS, Plan(events=100_000), events=5),
    "streamed, midway, quiet": Leaving(True, GENERATE, Plan(decode="stall-mid"), events=1),
}


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("name", LEAVINGS)
async def test_leaving_ends_both_legs(it: Bench, name: str, how: str) -> None:
    leaving = LEAVINGS[name]
    tag = f"{name}-{how}"
    before = await it.router.scrape()
    wire = await Wire.open(it.router.port)
    plan = leaving.plan._replace(tag=tag)
    await wire.send(prompt_bytes(plan, streamed=leaving.streamed, path=leaving.path))
    await it.until(lambda: len(it.book.by_tag[tag]) == 2, "both legs have arrived")
    for _ in range(leaving.events):
        await asyncio.wait_for(wire.reader.readuntil(b"\n\n"), 10)
    if not leaving.events:
        await asyncio.sleep(0.1)
    left_at = time.monotonic()
    wire.reset() if how == "reset" else wire.close()
    await it.idle()
    legs = it.book.by_tag[tag]
    assert len(legs) == 2, "a request whose client has left was tried again"
    for leg in legs:
        assert leg.ended_at is not None
        if leg.ended == ANSWERED and leg.ended_at < left_at:
            continue  # prefill had done its part
        assert leg.ended == CLOSED
        assert leg.ended_at - left_at < it.within(ABORT_WITHIN)
        await it.until(lambda leg=leg: leg.aborted_at is not None, "the engine is told")  # type: ignore[misc]
        assert leg.aborted_at is not None
        assert leg.aborted_at - left_at < it.within(ABORT_WITHIN)
    assert not it.book.foreign_aborts
    after = await it.router.scrape()
    gone = [s.total("plait_router_requests_total", outcome="client_gone") for s in (before, after)]
    assert gone[1] == gone[0] + 1
    blamed = [s.total("plait_router_leg_failures_total") for s in (before, after)]
    assert blamed[0] == blamed[1]


async def test_client_that_leaves_while_it_sends_reaches_no_engine(it: Bench) -> None:
    whole = prompt_bytes(Plan("half"), streamed=True)
    wires = [await Wire.open(it.router.port) for _ in range(20)]
    for number, wire in enumerate(wires):
        await wire.send(whole[: -1 - number])
    await asyncio.sleep(0.05)
    for number, wire in enumerate(wires):
        wire.reset() if number % 2 else wire.close()
    await it.idle()
    assert not it.book.by_tag["half"]


async def test_client_that_leaves_during_a_retry(it: Bench) -> None:
    """The second attempt is the one that is under way: its engines are told, with its ids."""
    legs = it.book.by_tag["again"]
    plan = Plan("again", decode="die-rst-wait")
    with contextlib.closing(await Wire.open(it.router.port)) as wire:
        await wire.send(prompt_bytes(plan, streamed=True))
        await it.until(lambda: len(legs) == 4, "the second attempt")
        await asyncio.sleep(0.1)
        left_at = time.monotonic()
        wire.reset()
    await it.until(lambda: all(leg.ended for leg in legs), "all legs end")
    for leg in legs[2:]:
        assert leg.ended == CLOSED
        await it.until(lambda leg=leg: leg.aborted_at is not None, "the engine is told")  # type: ignore[misc]
        assert leg.aborted_at is not None
        assert leg.aborted_at - left_at < it.within(ABORT_WITHIN)
    assert len(legs) == 4


async def test_engines_that_take_no_abort_hold_nothing_up(it: Bench) -> None:
    for engine in it.engines:
        engine.abort_mode = "hang"
    try:
        wires = [await Wire.open(it.router.port) for _ in range(20)]
        for wire in wires:
            await wire.send(prompt_bytes(Plan("deaf", decode="hang"), streamed=True))
        await it.until(lambda: len(it.book.by_tag["deaf"]) == 40, "all legs have arrived")
        for wire in wires:
            wire.reset()
        await it.idle(seconds=it.within(2.0))
        began = time.monotonic()
        reply = await it.prompt(Plan("next"), streamed=True)
        assert reply.status == 200
        assert time.monotonic() - began < it.within(0.5)
    finally:
        for engine in it.engines:
            engine.abort_mode = "ok"
