"""Traces of requests through a running router, as a real collector gets them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from tests.unit.router.asking import CHAT, CHAT_PATH, NO_POLLS, STREAMED
from tests.unit.router.collector import Collector, running_collector, value
from tests.unit.router.conftest import Lab, RunningRouter, running_router
from tests.unit.router.stub_engine import StubEngine, hang, reset, status, wait_for_ever

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01", "tracestate": "vendor=1"}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with running_collector() as running:
        yield running


@contextlib.asynccontextmanager
async def traced(
    lab: Lab, collector: Collector, *sides: str, **settings: Any
) -> AsyncIterator[RunningRouter]:
    """A router whose spans are all with the collector once the block has ended."""
    engines = [await lab.engine(side) for side in sides or ("prefill", "decode")]
    how = {"otlp_endpoint": collector.url} | NO_POLLS | settings
    async with running_router(engines, **how) as router:
        wanted = sum(s == "decode" for s in sides) or 1
        await router.until(lambda: len(router.state.workers.pairs()) >= wanted)
        for worker in router.state.workers.workers:
            worker.pool.drop_idle()
        yield router


def told(span: Span) -> dict[str, Any]:
    return {each.key: value(each.value) for each in span.attributes}


def sent(engine: StubEngine, number: int = 0) -> tuple[str, str, str | None]:
    """Trace, span and state that the engine was told."""
    headers = {name.lower(): each for name, each in engine.seen[number].headers.items()}
    _, trace, span, _ = headers["traceparent"].split("-")
    return trace, span, headers.get("tracestate")


@pytest.mark.parametrize("body", [CHAT, STREAMED])
async def test_request_and_its_legs(lab: Lab, collector: Collector, body: dict[str, Any]) -> None:
    async with traced(lab, collector) as router:
        headers = PARENT | {"x-request-id": "mine"}
        code, _ = await router.post(CHAT_PATH, body, headers=headers)
        assert code == 200
        await router.until_idle()
        engines = {e.role: e for e in router.engines}
        urls = {e.role: e.url for e in router.engines}
    request = collector.span(CHAT_PATH)
    assert request.trace_id.hex() == TRACE_ID
    assert request.parent_span_id.hex() == SPAN_ID
    about = told(request)
    assert about["plait.request_id"] == "mine"
    assert about["plait.outcome"] == "ok"
    assert about["http.response.status_code"] == 200
    assert (about["plait.prefill"], about["plait.decode"]) == (urls["prefill"], urls["decode"])
    assert (about["plait.retries"], about["gen_ai.request.model"]) == (0, "tiny")
    assert about["gen_ai.request.stream"] is (body is STREAMED)
    took = (request.end_time_unix_nano - request.start_time_unix_nano) / 1e9
    assert 0 < about["gen_ai.response.time_to_first_chunk"] <= took + 0.001
    for side, engine in engines.items():
        leg = collector.span(side)
        assert (leg.trace_id.hex(), leg.parent_span_id) == (TRACE_ID, request.span_id)
        assert told(leg)["plait.worker"] == urls[side]
        # What the engine records hangs below the leg, and it hears nothing of the client's own span.
        assert sent(engine) == (TRACE_ID, leg.span_id.hex(), "vendor=1")
    assert len(collector.spans) == 3
    text = b"".join(collector.bodies)
    assert b"hi" not in [v for s in collector.spans for v in told(s).values()]
    assert b"content" not in text


async def test_failed_try_and_the_one_after_it(lab: Lab, collector: Collector) -> None:
    async with traced(lab, collector, "prefill", "decode", "decode", decode_policy="round-robin") as router:
        failing = router.engines[1]
        failing.behave, router.prefill.behave = reset, hang
        code, _ = await router.post(CHAT_PATH, CHAT)
        assert code == 200
        assert len(failing.seen) == 1
    assert told(collector.span(CHAT_PATH))["plait.retries"] == 1
    legs = sorted((s for s in collector.spans if s.name == "decode"), key=lambda s: s.start_time_unix_nano)
    assert [told(leg).get("http.request.resend_count") for leg in legs] == [None, 1]
    assert [told(leg).get("error.type") for leg in legs] == ["broken", None]
    assert legs[0].status.code == Status.STATUS_CODE_ERROR
    prefills = [s for s in collector.spans if s.name == "prefill"]
    assert {told(leg).get("error.type") for leg in prefills} == {"cancelled"}
    ids = {s.span_id for s in (*legs, *prefills)}
    assert len(ids) == 4


async def test_request_that_fails(lab: Lab, collector: Collector) -> None:
    async with traced(lab, collector) as router:
        router.prefill.behave, router.decode.behave = status(500, "my secret"), wait_for_ever
        code, _ = await router.post(CHAT_PATH, CHAT)
        assert code == 502
    request = collector.span(CHAT_PATH)
    assert request.status.code == Status.STATUS_CODE_ERROR
    about = told(request)
    assert (about["plait.outcome"], about["error.type"]) == ("prefill_failed", "prefill_status")
    assert told(collector.span("prefill"))["http.response.status_code"] == 500
    assert told(collector.span("decode"))["error.type"] == "cancelled"
    assert b"my secret" not in b"".join(collector.bodies)


async def test_wait_in_line_is_a_span(lab: Lab, collector: Collector) -> None:
    async with traced(lab, collector, worker_limit=1) as router:
        router.decode.behave = hang
        first = asyncio.create_task(router.post(CHAT_PATH, CHAT))
        await router.until(lambda: bool(router.decode.seen))
        second = asyncio.create_task(router.post(CHAT_PATH, CHAT))
        await router.until(lambda: router.state.workers.line.waiting == 1)
        await asyncio.sleep(0.05)
        first.cancel()
        await router.until(lambda: len(router.decode.seen) == 2)
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        await router.until_idle()
    waited = collector.span("queue")
    assert waited.end_time_unix_nano - waited.start_time_unix_nano >= 50_000_000
    parent = next(s for s in collector.spans if s.span_id == waited.parent_span_id)
    assert parent.name == CHAT_PATH
    assert told(parent)["plait.queue_seconds"] >= 0.05
    assert {told(s)["plait.outcome"] for s in collector.spans if s.name == CHAT_PATH} == {"client_gone"}


async def test_without_a_collector_headers_pass_untouched(router: RunningRouter) -> None:
    code, _ = await router.post(CHAT_PATH, CHAT, headers=PARENT)
    assert code == 200
    for engine in router.engines:
        assert sent(engine) == (TRACE_ID, SPAN_ID, "vendor=1")
