"""Traces of requests by OpenTelemetry, sent to a collector by OTLP/HTTP.

A request has one server span, a client span for each leg (prefill, decode; a retry has new ones), and one for
its wait in the queue (`spans`). They are handed to the library's batch processor, whose thread encodes and
sends them: a collector that is slow or gone costs spans, never a request.

Importing this module loads OpenTelemetry's SDK; only `tracing.open_tracer` does.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    get_current_span,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import plait
from plait.router.spans import Attributes, RequestTrace
from plait.router.tracing import TraceCounts, Tracer

log = logging.getLogger("plait.router.tracing")

# Ids made here are random (W3C Trace Context 2), as a sampler behind an engine may want to know.
_SAMPLED = TraceFlags(TraceFlags.SAMPLED | TraceFlags.RANDOM_TRACE_ID)
_UNSAMPLED = TraceFlags(TraceFlags.RANDOM_TRACE_ID)
_UNSET = Status(StatusCode.UNSET)
_ERROR = Status(StatusCode.ERROR)
_EMPTY = Context()
# Spans that wait for the collector, with those on the way to it: about 2 KB each.
_MOST_PENDING = 4096


class OtlpTracer(Tracer):
    """Sends to `url`. One for a process; to be used from its event loop, `close` from anywhere."""

    on = True

    def __init__(self, url: str, *, sample: float, instance: str) -> None:
        # The library tells of each batch that fails, and of each odd header of a client.
        logging.getLogger("opentelemetry").setLevel(logging.ERROR)
        logging.getLogger(OTLPSpanExporter.__module__).setLevel(logging.CRITICAL)
        self._exporter = _Exporter(OTLPSpanExporter(endpoint=url), url)
        self._processor = BatchSpanProcessor(self._exporter, max_queue_size=_MOST_PENDING)
        self._resource = _resource(instance)
        self._scope = InstrumentationScope("plait.router", plait.__version__)
        self._root = TraceIdRatioBased(sample)
        self._ids = RandomIdGenerator()
        self._propagator = TraceContextTextMapPropagator()
        self._ended = 0
        self._overflow = 0

    def request(self, headers: Iterable[tuple[bytes, bytes]], *, start: float | None = None) -> RequestTrace:
        """The trace of one request: a part of its client's, where that sends a valid `traceparent`."""
        parent = self._parent(headers)
        if parent is None:
            trace_id = self._ids.generate_trace_id()
            sampled = self._root.should_sample(None, trace_id, "").decision is Decision.RECORD_AND_SAMPLE
            flags, state = (_SAMPLED if sampled else _UNSAMPLED), None
        else:
            trace_id, state = parent.trace_id, parent.trace_state
            # Not the bits that no version of the standard has given a meaning.
            flags = TraceFlags(parent.trace_flags & _SAMPLED)
        context = SpanContext(trace_id, self._ids.generate_span_id(), False, flags, state)
        return RequestTrace(self, context, parent, time.monotonic() if start is None else start)

    @property
    def counts(self) -> TraceCounts:
        """Spans so far; those that wait are in neither."""
        return TraceCounts(self._exporter.exported, self._exporter.failed + self._overflow)

    def close(self, *, seconds: float = 2.0) -> bool:
        """Send what is left; blocks for at most `seconds`. Whether all of it was sent."""
        # The library's own end waits up to 30 s, and for a collector that does not answer 10 s more.
        ending = threading.Thread(target=self._processor.shutdown, name="plait-traces-end", daemon=True)
        ending.start()
        ending.join(seconds)
        if ending.is_alive():
            self._exporter.shutdown()
        lost = self._ended - self._exporter.exported - self._exporter.failed
        if lost:
            log.warning("%d spans could not be sent in the %g s that the end may take", lost, seconds)
        return not lost and not self._exporter.failing

    def child(self, parent: SpanContext) -> SpanContext:
        """A new span below `parent`."""
        return SpanContext(
            parent.trace_id, self._ids.generate_span_id(), False, parent.trace_flags, parent.trace_state
        )

    def emit(
        self,
        name: str,
        context: SpanContext,
        *,
        parent: SpanContext | None,
        kind: SpanKind,
        start_ns: int,
        end_ns: int,
        attributes: Attributes,
        failed: bool,
    ) -> None:
        """Hand over a span that is over; times in ns since 1970. A full queue loses it."""
        if self._ended - self._exporter.exported - self._exporter.failed >= _MOST_PENDING:
            self._overflow += 1
            return
        self._ended += 1
        # Not by `start_span` and its setters: a span costs 20 us there, a tenth of that like this, and all
        # that they would check holds here.
        self._processor.on_end(
            ReadableSpan(
                name,
                context,
                parent,
                self._resource,
                attributes,
                kind=kind,
                status=_ERROR if failed else _UNSET,
                start_time=start_ns,
                end_time=max(start_ns, end_ns),
                instrumentation_scope=self._scope,
            )
        )

    def _parent(self, headers: Iterable[tuple[bytes, bytes]]) -> SpanContext | None:
        parents, states = [], []
        for name, value in headers:
            if name == b"traceparent":
                parents.append(value.decode("latin-1"))
            elif name == b"tracestate":
                states.append(value.decode("latin-1"))
        # None, or more than one, which makes it invalid (W3C Trace Context, 3.2).
        if len(parents) != 1:
            return None
        carrier: dict[str, list[str]] = {"traceparent": parents}
        if states:
            carrier["tracestate"] = states
        found = get_current_span(self._propagator.extract(carrier, _EMPTY)).get_span_context()
        return found if found.is_valid else None


class _Exporter(SpanExporter):
    """Counts, and tells the log when the collector fails and when it is back, not each time in between."""

    def __init__(self, inner: SpanExporter, url: str) -> None:
        self._inner = inner
        self._url = url
        self.exported = 0
        self.failed = 0
        self.failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """In the processor's thread."""
        result = SpanExportResult.FAILURE
        try:
            result = self._inner.export(spans)
        finally:
            if result is SpanExportResult.SUCCESS:
                self.exported += len(spans)
                if self.failing:
                    log.info("traces are sent to %s again; %d spans were lost", self._url, self.failed)
            else:
                self.failed += len(spans)
                if not self.failing:
                    log.warning("traces cannot be sent to %s: spans are dropped until they can", self._url)
            self.failing = result is not SpanExportResult.SUCCESS
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)


def _resource(instance: str) -> Resource:
    """Who sends. Without `instance` the library makes an id for this process.

    OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES count more than name and version here.
    """
    told = Resource.create({}).attributes
    own = {"service.instance.id": instance} if instance else {}
    if "service.version" not in told:
        own["service.version"] = plait.__version__
    if str(told["service.name"]).startswith("unknown_service"):
        own["service.name"] = "plait-router"
    return Resource.create(own)
