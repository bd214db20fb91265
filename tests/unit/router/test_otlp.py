"""How traces are sent: to a real collector, that may be slow, wrong or gone."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator

import pytest
from tests.unit.router.collector import Collector, running_collector

import plait
from plait.router import otlp
from plait.router.spans import RequestTrace
from plait.router.tracing import TraceCounts, Tracer, open_tracer

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with running_collector() as running:
        yield running


def ask(tracer: Tracer, *headers: tuple[bytes, bytes], route: str = "/generate") -> RequestTrace:
    """One request, begun and ended."""
    trace = tracer.request(headers)
    assert trace is not None
    trace.end(time.monotonic(), route=route, request_id="r", outcome="ok", status=200)
    return trace


def parent(flags: str = "01") -> tuple[bytes, bytes]:
    return b"traceparent", f"00-{TRACE_ID}-{SPAN_ID}-{flags}".encode()


def test_spans_go_out_by_themselves(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20collector-key")
    tracer = open_tracer(collector.url)
    assert tracer.on
    ask(tracer)
    by = time.monotonic() + 10
    while not tracer.counts.exported and time.monotonic() < by:
        time.sleep(0.01)
    assert tracer.counts == TraceCounts(exported=1, dropped=0)
    assert collector.paths == ["/v1/traces"]
    assert collector.headers[0]["content-type"] == "application/x-protobuf"
    assert collector.headers[0]["authorization"] == "Bearer collector-key"
    assert tracer.close()


def test_who_sends_is_told(collector: Collector) -> None:
    tracer = open_tracer(collector.url, instance="router-0/2")
    ask(tracer)
    tracer.close()
    told = collector.resource
    assert told["service.name"] == "plait-router"
    assert told["service.version"] == plait.__version__
    assert told["service.instance.id"] == "router-0/2"


def test_what_the_environment_says_of_who_sends_counts_more(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=router-0,service.version=9")
    tracer = open_tracer(collector.url)
    ask(tracer)
    tracer.close()
    told = collector.resource
    assert (told["service.name"], told["k8s.pod.name"], told["service.version"]) == ("mine", "router-0", "9")
    assert told["service.instance.id"], "made by the library"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"traceparent", b"")],
        [(b"traceparent", b"nonsense")],
        [(b"traceparent", f"00-{'0' * 32}-{SPAN_ID}-01".encode())],
        [(b"traceparent", f"00-{TRACE_ID}-{'0' * 16}-01".encode())],
        [(b"traceparent", f"ff-{TRACE_ID}-{SPAN_ID}-01".encode())],
        [(b"traceparent", f"00-{TRACE_ID}-{SPAN_ID}-01-more".encode())],
        [(b"traceparent", b"00-" + b"a" * 10_000)],
        [(b"traceparent", b"\xff\x00")],
        [parent(), parent()],
        [(b"tracestate", b"a=1")],
    ],
)
def test_a_parent_that_is_none_begins_a_new_trace(
    collector: Collector, headers: list[tuple[bytes, bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    tracer = open_tracer(collector.url)
    trace = ask(tracer, *headers)
    tracer.close()
    assert trace.trace_id not in (TRACE_ID, "0" * 32)
    assert collector.span("/generate").parent_span_id == b""
    assert not caplog.records, "a client must not be able to fill the log"


@pytest.mark.parametrize("state", [b"", b"no", b"a=1," * 60, b"a=" + b"x" * 3000, b"\xff=1"])
def test_a_state_that_is_none_does_not_cost_the_trace(
    collector: Collector, state: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    tracer = open_tracer(collector.url)
    trace = ask(tracer, parent(), (b"tracestate", state))
    assert tracer.close()
    assert trace.trace_id == TRACE_ID
    assert sum(len(value) for _, value in trace.headers()) < 600
    assert not caplog.records


@pytest.mark.parametrize(
    ("sample", "flags", "sampled"),
    [(1.0, "00", False), (0.0, "01", True), (1.0, "01", True), (0.0, "00", False)],
)
def test_a_client_decides_for_its_own_trace(
    collector: Collector, sample: float, flags: str, sampled: bool
) -> None:
    tracer = open_tracer(collector.url, sample=sample)
    trace = ask(tracer, parent(flags))
    trace.leg("decode", "http://d", start=0.0).end(1.0)
    trace.queued(0.0, 1.0)
    tracer.close()
    assert trace.sampled is sampled
    assert len(collector.spans) == (3 if sampled else 0)
    assert trace.headers()[0][1].endswith(flags.encode()), "engines are told either way"


def test_a_part_of_the_new_traces_is_kept(collector: Collector) -> None:
    tracer = open_tracer(collector.url, sample=0.25)
    sampled = [ask(tracer).sampled for _ in range(2000)]
    tracer.close()
    assert 380 < sum(sampled) < 620
    assert len(collector.spans) == sum(sampled)


def test_flags_without_a_meaning_are_not_passed_on(collector: Collector) -> None:
    tracer = open_tracer(collector.url)
    assert ask(tracer, parent("ff")).headers()[0][1].endswith(b"-03")
    tracer.close()


@pytest.mark.parametrize("how", ["refuses", "answers 500", "answers 400", "not there"])
def test_a_failing_collector_costs_spans_and_is_told_once(
    collector: Collector, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    caplog.set_level(logging.INFO)
    url = collector.url
    if how == "refuses":
        # Tries again for as long as this allows, which is 10 s without it.
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
        with socket.create_server(("127.0.0.1", 0)) as free:
            url = f"http://127.0.0.1:{free.getsockname()[1]}"
    elif how == "not there":
        url += "/somewhere"
        collector.status = 404
    else:
        collector.status = int(how[-3:])
    tracer = open_tracer(url)
    for count in range(1, 4):
        ask(tracer)
        by = time.monotonic() + 20
        while tracer.counts.dropped < count and time.monotonic() < by:
            time.sleep(0.01)
    assert tracer.counts == TraceCounts(exported=0, dropped=3)
    [told] = [record.message for record in caplog.records]
    assert told.startswith(f"traces cannot be sent to {url}")
    if how.startswith("answers"):
        collector.status = 200
        ask(tracer)
        assert tracer.close()
        assert tracer.counts == TraceCounts(exported=1, dropped=3)
        assert caplog.records[-1].message.endswith("again; 3 spans were lost")
    else:
        assert not tracer.close()


def test_requests_do_not_wait_for_a_collector_that_hangs_and_the_end_takes_two_seconds(
    collector: Collector, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    monkeypatch.setattr(otlp, "_MOST_PENDING", 600)
    collector.hang = True
    tracer = open_tracer(collector.url)
    ask(tracer)
    assert collector.asked.wait(10)
    begun = time.thread_time()
    for _ in range(1999):
        ask(tracer)
    assert time.thread_time() - begun < 1.0
    assert tracer.counts == TraceCounts(exported=0, dropped=1400), "what waits is bounded"
    begun = time.monotonic()
    assert not tracer.close()
    assert 1.9 < time.monotonic() - begun < 3.0
    assert "600 spans could not be sent" in caplog.text


def test_the_end_sends_what_is_left_at_once(collector: Collector) -> None:
    tracer = open_tracer(collector.url)
    for _ in range(1000):
        ask(tracer)
    begun = time.monotonic()
    assert tracer.close()
    assert time.monotonic() - begun < 2.0
    assert len(collector.spans) == 1000
    assert tracer.counts == TraceCounts(exported=1000, dropped=0)


def test_a_span_after_the_end_is_no_error(collector: Collector) -> None:
    tracer = open_tracer(collector.url)
    tracer.close()
    ask(tracer)
    assert collector.spans == []


def test_nothing_of_a_prompt_or_key_can_be_told(collector: Collector) -> None:
    """Headers are the only part of a request that a trace sees, and it keeps two of them."""
    tracer = open_tracer(collector.url)
    secret = [
        (b"authorization", b"Bearer plait-secret"),
        (b"x-api-key", b"plait-secret"),
        (b"cookie", b"c=secret"),
    ]
    trace = ask(tracer, *secret, parent())
    assert [name for name, _ in trace.headers()] == [b"traceparent"]
    tracer.close()
    assert collector.spans
    assert not any(b"secret" in body for body in collector.bodies)


def test_no_tracer_of_others_is_touched(collector: Collector) -> None:
    """FastAPI traces its routes by the global one, where there is one."""
    from opentelemetry import trace

    before = trace.get_tracer_provider()
    open_tracer(collector.url).close()
    assert trace.get_tracer_provider() is before
