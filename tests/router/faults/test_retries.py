"""What a retry does beyond the rows of the table: engines that are gone, busy ones, batches."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.router.harness.bench import Bench, complete
from tests.router.mocks.answers import COMPLETIONS, GENERATE, MESSAGES
from tests.router.mocks.plan import Plan

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("side", ["prefill", "decode"])
async def test_engine_that_is_gone_costs_no_request(it: Bench, side: str) -> None:
    gone, left = it.side(side)
    plan = Plan(f"gone-{side}")
    await gone.stop()
    try:
        replies = await asyncio.gather(*(it.prompt(plan, streamed=bool(n % 2)) for n in range(20)))
        for number, reply in enumerate(replies):
            assert complete(reply, plan, streamed=bool(number % 2)), (reply.status, reply.body)
        ended = [leg for leg in it.book.by_tag[plan.tag] if leg.engine.role == side]
        assert {leg.engine for leg in ended} == {left}
    finally:
        await gone.start()


async def test_engine_that_dies_with_requests_under_way_costs_only_their_streams(it: Bench) -> None:
    """Those that have a part of their answer are told; all others are served by the engine that is left."""
    dying, _ = it.side("decode")
    plan = Plan("under-way", events=100, pause=0.02)
    quiet = Plan("not-yet", decode="slow-start")
    begun = [asyncio.create_task(it.prompt(plan, streamed=True)) for _ in range(8)]
    early = [asyncio.create_task(it.prompt(quiet, streamed=bool(n % 2))) for n in range(8)]
    await it.until(
        lambda: sum(leg.sent > 500 for leg in it.book.by_tag["under-way"]) >= 8, "the streams have begun"
    )
    await it.until(lambda: len(it.book.by_tag["not-yet"]) >= 16, "the others have arrived")
    assert any(leg.engine is dying for leg in it.book.by_tag["under-way"])
    await dying.stop()
    try:
        for reply, leg in zip(await asyncio.gather(*begun), _decodes(it, "under-way"), strict=True):
            assert reply.status == 200
            assert complete(reply, plan, streamed=True) or str(reply.error["code"]).startswith("decode"), leg
        for number, reply in enumerate(await asyncio.gather(*early)):
            assert complete(reply, quiet, streamed=bool(number % 2)), (reply.status, reply.body)
    finally:
        await dying.start()


def _decodes(it: Bench, tag: str) -> list[object]:
    return [leg for leg in it.book.by_tag[tag] if leg.engine.role == "decode"]


@pytest.mark.parametrize("side", ["prefill", "decode"])
async def test_engines_that_are_all_busy_say_when_to_come_again(it: Bench, side: str) -> None:
    reply = await it.prompt(Plan("busy", **{side: "status-503"}), streamed=True)  # type: ignore[arg-type]
    assert reply.status == 503
    assert MESSAGES[503] in reply.error["message"]
    assert int(reply.headers["retry-after"]) >= 1


@pytest.mark.parametrize(
    ("path", "prompts"),
    [
        (COMPLETIONS, {"prompt": ["one", "two", "three"]}),
        (COMPLETIONS, {"prompt": [[1, 2], [3, 4], [5, 6]]}),
        (GENERATE, {"input_ids": [[1, 2], [3, 4], [5, 6]], "text": None}),
    ],
)
async def test_retry_of_a_batch_has_fresh_rooms_for_all_its_prompts(
    it: Bench, path: str, prompts: dict[str, object]
) -> None:
    plan = Plan(f"batch-{json.dumps(prompts)}", decode="die-rst", times=1)
    reply = await it.prompt(plan, streamed=False, path=path, **prompts)
    assert reply.status == 200, reply.body
    attempts = [leg for leg in it.book.by_tag[plan.tag] if leg.engine.role == "decode"]
    assert len(attempts) == 2
    assert attempts[0].engine is not attempts[1].engine
    rooms = [room for leg in attempts for room in leg.rooms]
    assert len(rooms) == len(set(rooms)) == 6
    rids = [rid for leg in attempts for rid in leg.rids]
    assert len(rids) == len(set(rids)) == 6
