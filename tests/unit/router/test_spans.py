"""What a request's trace tells, as a real collector reads it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from tests.unit.router.collector import Collector, running_collector

from plait.router.spans import RequestTrace
from plait.router.tracing import Tracer, open_tracer

PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PREFILL, DECODE = "http://10.0.0.1:30000", "https://engine.local"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with running_collector() as running:
        yield running


@pytest.fixture
def tracer(collector: Collector) -> Iterator[Tracer]:
    opened = open_tracer(collector.url, instance="router-0")
    yield opened
    opened.close()


def request_of(tracer: Tracer, *headers: tuple[bytes, bytes], start: float | None = None) -> RequestTrace:
    trace = tracer.request(headers, start=start)
    assert trace is not None
    return trace


def test_a_whole_request(tracer: Tracer, collector: Collector) -> None:
    at, now_ns = time.monotonic(), time.time_ns()
    trace = request_of(tracer, (b"host", b"router"), (b"traceparent", PARENT), start=at)
    trace.queued(at + 0.01, at + 0.21)
    failed = trace.leg("prefill", PREFILL, start=at + 0.25)
    failed.end(at + 0.5, error="connect_timeout")
    prefill = trace.leg("prefill", PREFILL, start=at + 0.5, attempt=1)
    decode = trace.leg("decode", DECODE, start=at + 0.5, attempt=1)
    decode.end(at + 1.75, status=200)
    trace.end(
        at + 2.0,
        route="/v1/chat/completions",
        request_id="req-1",
        outcome="ok",
        status=200,
        model="glm-5",
        stream=True,
        first_byte=at + 0.75,
        prefill=PREFILL,
        decode=DECODE,
        retries=1,
    )
    prefill.end(at + 2.5, status=200)
    assert tracer.close()

    server, queue, leg = (collector.span(name) for name in ("/v1/chat/completions", "queue", "decode"))
    assert server.trace_id.hex() == trace.trace_id == "0af7651916cd43dd8448eb211c80319c"
    assert server.parent_span_id.hex() == "b7ad6b7169203331"
    assert {span.trace_id for span in collector.spans} == {server.trace_id}
    below = [span for span in collector.spans if span is not server and span.name != server.name]
    assert {span.parent_span_id for span in below} == {server.span_id}
    assert len({span.span_id for span in collector.spans}) == 5
    assert (server.kind, queue.kind, leg.kind) == (
        Span.SPAN_KIND_SERVER,
        Span.SPAN_KIND_INTERNAL,
        Span.SPAN_KIND_CLIENT,
    )
    assert abs(server.start_time_unix_nano - now_ns) < 50_000_000

    def seconds(span: Span) -> tuple[float, float]:
        begun, ended = span.start_time_unix_nano, span.end_time_unix_nano
        return (begun - server.start_time_unix_nano) / 1e9, (ended - begun) / 1e9

    assert seconds(server) == pytest.approx((0, 2.0), abs=1e-5)
    assert seconds(queue) == pytest.approx((0.01, 0.2), abs=1e-5)
    assert seconds(leg) == pytest.approx((0.5, 1.25), abs=1e-5)
    first, second = sorted(
        (s for s in collector.spans if s.name == "prefill"), key=lambda s: s.start_time_unix_nano
    )
    assert first.status.code == Status.STATUS_CODE_ERROR
    assert seconds(second) == pytest.approx((0.5, 2.0), abs=1e-5), "a leg may end after its request"

    told = collector.attributes("/v1/chat/completions")
    assert told.pop("plait.queue_seconds") == pytest.approx(0.2)
    assert told.pop("gen_ai.response.time_to_first_chunk") == pytest.approx(0.75)
    assert told == {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "sglang",
        "gen_ai.request.model": "glm-5",
        "gen_ai.request.stream": True,
        "plait.request_id": "req-1",
        "plait.outcome": "ok",
        "plait.retries": 1,
        "plait.prefill": PREFILL,
        "plait.decode": DECODE,
    }
    assert server.status.code == Status.STATUS_CODE_UNSET
    assert collector.attributes("decode") == {
        "http.request.method": "POST",
        "http.request.resend_count": 1,
        "http.response.status_code": 200,
        "server.address": "engine.local",
        "server.port": 443,
        "plait.worker": DECODE,
        "plait.side": "decode",
    }


def test_engines_are_told_whose_leg_they_are(tracer: Tracer, collector: Collector) -> None:
    state = (b"tracestate", b"vendor=1,other=2")
    trace = request_of(tracer, (b"traceparent", PARENT), state)
    legs = [trace.leg("prefill", PREFILL, start=0.0), trace.leg("decode", DECODE, start=0.0)]
    told = [dict(headers) for headers in (trace.headers(), *(leg.headers() for leg in legs))]
    assert all(headers[b"tracestate"] == state[1] for headers in told)
    parts = [headers[b"traceparent"].split(b"-") for headers in told]
    assert all(part[:2] == PARENT.split(b"-")[:2] and part[3] == b"01" for part in parts)
    for leg in legs:
        leg.end(1.0, status=200)
    trace.end(2.0, route="/generate", request_id="r", outcome="ok", status=200)
    tracer.close()
    ids = [collector.span(name).span_id.hex() for name in ("/generate", "prefill", "decode")]
    assert [part[2].decode() for part in parts] == ids
    assert [part.trace_state for part in collector.spans] == [state[1].decode()] * 3


def test_a_new_trace_has_the_form_of_the_standard(tracer: Tracer) -> None:
    [(name, value)] = request_of(tracer).headers()
    version, trace_id, span_id, flags = value.split(b"-")
    assert (name, version, flags, len(trace_id), len(span_id)) == (b"traceparent", b"00", b"03", 32, 16)
    again = request_of(tracer, (b"traceparent", value))
    assert again.trace_id == trace_id.decode()


@pytest.mark.parametrize(
    ("status", "error", "type", "server", "leg"),
    [
        (200, "", None, False, False),
        (400, "", "400", False, True),
        (503, "", "503", True, True),
        (200, "stream_broken", "stream_broken", True, True),
    ],
)
def test_failures_are_marked(
    tracer: Tracer,
    collector: Collector,
    status: int,
    error: str,
    type: str | None,
    server: bool,
    leg: bool,
) -> None:
    trace = request_of(tracer)
    trace.leg("decode", DECODE, start=0.0).end(1.0, status=status, error=error)
    trace.end(2.0, route="/v1/completions", request_id="r", outcome="x", status=status, error=error)
    tracer.close()
    for name, failed in (("/v1/completions", server), ("decode", leg)):
        assert (collector.span(name).status.code == Status.STATUS_CODE_ERROR) is failed
        assert collector.attributes(name).get("error.type") == (type if failed else None)
    assert collector.attributes("/v1/completions")["gen_ai.operation.name"] == "text_completion"


def test_a_leg_without_an_answer_has_no_status(tracer: Tracer, collector: Collector) -> None:
    trace = request_of(tracer)
    trace.leg("decode", "http://10.0.0.2", start=0.0).end(1.0, error="refused")
    tracer.close()
    told = collector.attributes("decode")
    assert "http.response.status_code" not in told
    assert "http.request.resend_count" not in told
    assert (told["server.address"], told["server.port"]) == ("10.0.0.2", 80)


def test_what_was_not_there_is_not_told(tracer: Tracer, collector: Collector) -> None:
    request_of(tracer).end(1.0, route="/v1/completions", request_id="r", outcome="refused", status=401)
    tracer.close()
    told = collector.attributes("/v1/completions")
    for name in (
        "gen_ai.request.model",
        "gen_ai.response.time_to_first_chunk",
        "plait.prefill",
        "plait.decode",
    ):
        assert name not in told
    assert told["plait.queue_seconds"] == 0.0


def test_what_a_client_chose_is_cut_and_can_always_be_sent(tracer: Tracer, collector: Collector) -> None:
    trace = request_of(tracer)
    trace.end(1.0, route="/generate", request_id="x" * 5000, outcome="ok", status=200, model="a\ud800b" * 100)
    assert tracer.close()
    told = collector.attributes("/generate")
    assert told["plait.request_id"] == "x" * 200
    assert told["gen_ai.request.model"] == ("a?b" * 100)[:200]


def test_times_that_run_backwards_make_no_negative_span(tracer: Tracer, collector: Collector) -> None:
    trace = request_of(tracer, start=5.0)
    trace.queued(5.0, 4.0)
    trace.end(4.0, route="/generate", request_id="r", outcome="ok", status=200)
    tracer.close()
    for name in ("queue", "/generate"):
        assert collector.span(name).end_time_unix_nano == collector.span(name).start_time_unix_nano
    assert collector.attributes("/generate")["plait.queue_seconds"] == 0.0
