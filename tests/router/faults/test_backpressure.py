"""Clients that stop reading: bounded memory, engines held back, and nobody else is slowed."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time

import pytest
from tests.router.harness.bench import IDLE, Bench, complete, prompt_bytes
from tests.router.harness.client import Wire
from tests.router.mocks.answers import DONE
from tests.router.mocks.book import CLOSED, Leg
from tests.router.mocks.plan import Plan

pytestmark = pytest.mark.asyncio(loop_scope="session")

MIB = 1 << 20
STALLED = 8
# What the kernel may hold on both ways of one stream (its buffers grow to 6 MB on loopback), and some.
MAX_HELD = 20 * MIB
# What the router may hold for one: its own limit of 256 KiB, a read beyond that, and copies of both.
MAX_KEPT = 3 * MIB
# 8 KB x 20,000 = 160 MB a stream.
FLOOD = Plan(events=20_000, size=8192)


async def _stall(it: Bench, tag: str, stack: contextlib.ExitStack) -> tuple[Wire, Leg]:
    """A client that reads the head of a stream and nothing more, and its decode leg."""
    wire = stack.enter_context(contextlib.closing(await Wire.open(it.router.port, receive_buffer=8192)))
    await wire.send(prompt_bytes(FLOOD._replace(tag=tag), streamed=True))
    assert (await wire.head()).status == 200
    wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
    return wire, next(leg for leg in it.book.by_tag[tag] if leg.engine.role == "decode")


async def _held_back(legs: list[Leg]) -> None:
    """Wait until no engine gets rid of another byte."""
    for _ in range(100):
        before = [leg.sent for leg in legs]
        await asyncio.sleep(0.2)
        if before == [leg.sent for leg in legs]:
            return
    raise AssertionError(f"engines are not held back: {[leg.sent for leg in legs]}")


async def test_stalled_readers_cost_bounded_memory_and_slow_nobody(it: Bench) -> None:
    alone = [await _time_to_answer(it) for _ in range(30)]
    memory = it.router.rss()
    with contextlib.ExitStack() as stack:
        stalled = [await _stall(it, f"stalled-{n}", stack) for n in range(STALLED)]
        legs = [leg for _, leg in stalled]
        await _held_back(legs)
        assert max(leg.sent for leg in legs) < MAX_HELD, [leg.sent for leg in legs]
        grown = it.router.rss() - memory
        assert grown < STALLED * MAX_KEPT, f"{grown / MIB:.1f} MiB for {STALLED} stalled readers"
        beside = [await _time_to_answer(it) for _ in range(30)]
        assert statistics.median(beside) < it.within(2 * statistics.median(alone) + 0.02), (alone, beside)
        left_at = time.monotonic()
        for wire, _ in stalled:
            wire.reset()
        await it.until(lambda: all(leg.ended for leg in legs), "their legs are closed")
        for leg in legs:
            assert leg.ended == CLOSED
            assert leg.ended_at is not None
            assert leg.ended_at - left_at < it.within(0.5)
            await it.until(lambda leg=leg: leg.aborted_at is not None, "the engine is told")  # type: ignore[misc]


async def test_reader_that_pauses_gets_every_byte(it: Bench) -> None:
    plan = FLOOD._replace(tag="pause", events=4000)  # 32 MB
    with contextlib.closing(await Wire.open(it.router.port, receive_buffer=8192)) as wire:
        await wire.send(prompt_bytes(plan, streamed=True))
        transport = wire.writer.transport
        transport.pause_reading()  # type: ignore[attr-defined]
        await it.until(lambda: len(it.book.by_tag["pause"]) == 2, "both legs have arrived")
        leg = next(leg for leg in it.book.by_tag["pause"] if leg.engine.role == "decode")
        await _held_back([leg])
        assert not leg.ended
        # Longer than the time an engine may be silent: it is not the engine that waits.
        await asyncio.sleep(IDLE + 0.3)
        transport.resume_reading()  # type: ignore[attr-defined]
        reply = await wire.reply()
    assert complete(reply, plan, streamed=True), (reply.status, reply.cut, reply.body[-200:])
    assert reply.body.endswith(DONE)


async def test_reader_that_takes_little_at_a_time(it: Bench) -> None:
    """Slower than its engine by far, and never quite still."""
    plan = Plan("sip", events=300, size=4096)
    with contextlib.closing(await Wire.open(it.router.port, receive_buffer=4096)) as wire:
        await wire.send(prompt_bytes(plan, streamed=True))
        taken = b""
        while not taken.endswith(b"0\r\n\r\n"):
            part = await asyncio.wait_for(wire.reader.read(16_384), 10)
            assert part, "cut off"
            taken += part
            await asyncio.sleep(0.005)
    assert taken.count(b"data: ") == plan.events + 1


async def _time_to_answer(it: Bench) -> float:
    began = time.monotonic()
    assert (await it.prompt(streamed=True)).status == 200
    return time.monotonic() - began
