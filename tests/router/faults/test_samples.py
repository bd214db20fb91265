"""Several samples of one prompt (n > 1) are legs of their own: a failed one is retried, or ends them all."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from tests.router.harness.bench import Bench, prompt_bytes
from tests.router.harness.client import Wire
from tests.router.mocks.book import CLOSED
from tests.router.mocks.plan import Plan

pytestmark = pytest.mark.asyncio(loop_scope="session")

SAMPLES = 3


@pytest.mark.parametrize("side", ["prefill", "decode"])
async def test_sample_that_fails_early_is_tried_again(it: Bench, side: str) -> None:
    plan = Plan(f"early-{side}", times=1, **{side: "die-rst"})  # type: ignore[arg-type]
    reply = await it.prompt(plan, streamed=False, n=SAMPLES)
    assert reply.status == 200, reply.body
    assert sorted(c["index"] for c in reply.json()["choices"]) == list(range(SAMPLES))
    rooms = [leg.rooms for leg in it.book.by_tag[plan.tag] if leg.engine.role == side]
    assert len(rooms) > SAMPLES
    assert len(set(rooms)) == len(rooms)


async def test_sample_that_is_refused_refuses_the_request(it: Bench) -> None:
    plan = Plan("refused", decode="status-400", times=1)
    reply = await it.prompt(plan, streamed=False, n=SAMPLES)
    assert reply.status == 400, reply.body
    await it.until(lambda: all(leg.ended for leg in it.book.by_tag["refused"]), "all legs end")


@pytest.mark.parametrize("fault", ["die-mid-rst", "stall-mid", "garbage-chunk"])
async def test_sample_that_breaks_midway_ends_the_stream_and_all_legs(it: Bench, fault: str) -> None:
    plan = Plan(f"midway-{fault}", decode=fault, times=1, events=1000, pause=0.01)
    reply = await it.prompt(plan, streamed=True, n=SAMPLES)
    assert reply.status == 200
    assert b"[DONE]" not in reply.body
    assert str(reply.error["code"]).startswith("decode")
    legs = [leg for leg in it.book.by_tag[plan.tag] if leg.engine.role == "decode"]
    assert len(legs) == SAMPLES
    for leg in legs:
        if not leg.fault:
            await it.until(lambda leg=leg: leg.ended == CLOSED, "its other samples end")  # type: ignore[misc]
            await it.until(lambda leg=leg: leg.aborted_at is not None, "the engine is told")  # type: ignore[misc]


@pytest.mark.parametrize("streamed", [False, True])
async def test_client_that_leaves_ends_all_samples(it: Bench, streamed: bool) -> None:
    tag = f"leaves-{streamed}"
    legs = it.book.by_tag[tag]
    with contextlib.closing(await Wire.open(it.router.port)) as wire:
        await wire.send(prompt_bytes(Plan(tag, decode="hang"), streamed=streamed, n=SAMPLES))
        await it.until(lambda: len(legs) == 2 * SAMPLES, "all legs have arrived")
        await asyncio.sleep(0.1)
        wire.reset()
    for leg in legs:
        if leg.engine.role == "decode":
            await it.until(lambda leg=leg: leg.ended == CLOSED, "the leg is closed")  # type: ignore[misc]
            await it.until(lambda leg=leg: leg.aborted_at is not None, "the engine is told")  # type: ignore[misc]
