"""The ends of waiting that are not an engine's fault: the whole request's time, a still client, the line."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.router.harness.bench import Bench, bench, complete, prompt_bytes
from tests.router.harness.client import Wire
from tests.router.mocks.book import CLOSED
from tests.router.mocks.plan import Plan

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOTAL, STALL, QUEUE = 1.3, 0.5, 0.5
# One request at a time on each of two pairs, and two that wait.
PAIRS, WAITING = 2, 2
FLAGS = (
    f"--total-timeout {TOTAL} --stall-timeout {STALL} --queue-timeout {QUEUE} "
    f"--worker-limit 1 --queue-limit {WAITING} --first-byte-timeout 30 --idle-timeout 30"
)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def made() -> AsyncIterator[Bench]:
    async with bench(prefill=PAIRS, decode=PAIRS, flags=FLAGS.split()) as made:
        yield made
        await made.nothing_left()


@pytest_asyncio.fixture(loop_scope="module")
async def it(made: Bench) -> AsyncIterator[Bench]:
    await made.recovered()
    made.lag.worst = 0.0
    yield made
    await made.idle()
    assert not made.faults_of_the_suite()
    made.book.forget()


async def _ended(it: Bench, tag: str) -> None:
    """All legs that had not answered are closed, and their engines told."""
    for leg in it.book.by_tag[tag]:
        if leg.ended != "answered":
            await it.until(lambda leg=leg: leg.ended == CLOSED, "the leg is closed")  # type: ignore[misc]
            await it.until(lambda leg=leg: leg.aborted_at is not None, "the engine is told")  # type: ignore[misc]


@pytest.mark.parametrize("side", ["prefill", "decode"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_whole_time_of_a_request_ends_it(it: Bench, side: str, streamed: bool) -> None:
    plan = Plan(f"total-{side}-{streamed}", **{side: "hang"})  # type: ignore[arg-type]
    reply = await it.prompt(plan, streamed=streamed)
    assert reply.status == 504
    assert reply.error["type"] == "server_error"
    assert TOTAL - 0.2 < reply.seconds < it.within(TOTAL + 0.3)
    await _ended(it, plan.tag)


async def test_whole_time_of_a_request_ends_a_stream_too(it: Bench) -> None:
    """Also one whose engine says something all the time."""
    reply = await it.prompt(Plan("long", events=100_000, pause=0.01), streamed=True)
    assert reply.status == 200
    assert reply.seconds < it.within(TOTAL + 0.3)
    assert b"[DONE]" not in reply.body
    assert reply.error["message"]
    await _ended(it, "long")


async def test_client_that_takes_nothing_is_given_up(it: Bench) -> None:
    """Within its own time, and nobody is blamed for it."""
    before = await it.router.scrape()
    with contextlib.closing(await Wire.open(it.router.port, receive_buffer=8192)) as wire:
        await wire.send(prompt_bytes(Plan("still", events=20_000, size=8192), streamed=True))
        assert (await wire.head()).status == 200
        wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
        began = time.monotonic()
        await it.until(lambda: all(leg.ended for leg in it.book.by_tag["still"]), "the legs are closed")
        # Sent until the buffers of both ways were full, which takes a moment itself.
        assert time.monotonic() - began < it.within(STALL + 0.6)
    await _ended(it, "still")
    after = await it.router.scrape()
    name = "plait_router_leg_failures_total"
    assert before.total(name) == after.total(name)


@contextlib.asynccontextmanager
async def _all_taken(it: Bench, tag: str) -> AsyncIterator[list[Wire]]:
    """Requests that take all pairs, for as long as the block runs (TOTAL at most)."""
    wires = [await Wire.open(it.router.port) for _ in range(PAIRS)]
    try:
        for wire in wires:
            await wire.send(prompt_bytes(Plan(tag, decode="wait"), streamed=True))
        await it.until(lambda: len(it.book.by_tag[tag]) == 2 * PAIRS, "all pairs are taken")
        yield wires
    finally:
        for wire in wires:
            wire.reset()


async def test_request_that_waits_too_long_is_told_when_to_come_again(it: Bench) -> None:
    async with _all_taken(it, "taken-1"):
        reply = await it.prompt(Plan("waits"), streamed=True)
        assert reply.status == 503
        assert QUEUE - 0.1 < reply.seconds < it.within(QUEUE + 0.3)
        assert int(reply.headers["retry-after"]) >= 1
        assert reply.error["message"]
    assert not it.book.by_tag["waits"], "it reached an engine"


async def test_line_that_is_full_takes_nobody(it: Bench) -> None:
    async with _all_taken(it, "taken-2"):
        waiting = [asyncio.create_task(it.prompt(Plan("waits"), streamed=True)) for _ in range(WAITING)]
        await asyncio.sleep(0.1)
        reply = await it.prompt(Plan("over"), streamed=True)
        assert reply.status == 429
        assert reply.seconds < it.within(0.2)
        assert int(reply.headers["retry-after"]) >= 1
        assert reply.error["message"]
        assert {(await task).status for task in waiting} == {503}
    assert not it.book.by_tag["over"]


async def test_request_that_waits_is_served_when_a_pair_is_free(it: Bench) -> None:
    async with _all_taken(it, "taken-3") as taken:
        waiting = asyncio.create_task(it.prompt(plan := Plan("served"), streamed=True))
        await asyncio.sleep(0.1)
        assert not it.book.by_tag["served"]
        taken[0].reset()
        assert complete(await waiting, plan, streamed=True)


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_client_that_leaves_the_line_reaches_no_engine(it: Bench, how: str) -> None:
    """Its place is free at once."""
    async with _all_taken(it, f"taken-{how}") as taken:
        leaving = [await Wire.open(it.router.port) for _ in range(WAITING)]
        for wire in leaving:
            await wire.send(prompt_bytes(Plan(f"left-{how}"), streamed=True))
        await asyncio.sleep(0.1)
        for wire in leaving:
            wire.reset() if how == "reset" else wire.close()
        await asyncio.sleep(0.1)
        waiting = asyncio.create_task(it.prompt(plan := Plan(f"next-{how}"), streamed=True))
        await asyncio.sleep(0.05)
        taken[0].reset()
        assert complete(await waiting, plan, streamed=True)
    await it.idle()
    assert not it.book.by_tag[f"left-{how}"]
