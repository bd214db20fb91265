"""One request's trace: the spans that its caller tells of, and the headers that tie an engine's to them.

Times are told when something is over, so a request under way only keeps floats.

Attributes are OpenTelemetry's where its conventions have one (HTTP, GenAI), else `plait.…`. No prompt, answer
or key is among them, and no engine's error message, which may quote a prompt.

Loaded with OpenTelemetry's SDK, by `tracing.open_tracer` only.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from opentelemetry.trace import SpanContext, SpanKind

if TYPE_CHECKING:
    from plait.router.otlp import OtlpTracer

Attributes = dict[str, str | int | float | bool]

_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/generate": "text_completion",
}
_MOST_CHARACTERS = 200


class RequestTrace:
    """One request. All times are time.monotonic()'s."""

    __slots__ = ("_context", "_offset_ns", "_parent", "_queue", "_start", "_tracer", "sampled")

    def __init__(
        self, tracer: OtlpTracer, context: SpanContext, parent: SpanContext | None, start: float
    ) -> None:
        self._tracer = tracer
        self._context = context
        self._parent = parent
        self._start = start
        # Taken for each request: the clock of the day may be set.
        self._offset_ns = time.time_ns() - time.monotonic_ns()
        self._queue = 0.0
        self.sampled = context.trace_flags.sampled

    @property
    def trace_id(self) -> str:
        """32 hex digits, as logs and `traceparent` write it."""
        return f"{self._context.trace_id:032x}"

    def headers(self) -> list[tuple[bytes, bytes]]:
        """`traceparent` (and `tracestate`) that make what an engine records a part of this request."""
        return _headers(self._context)

    def queued(self, start: float, end: float) -> None:
        """It waited in line; may be told more than once."""
        self._queue += max(0.0, end - start)
        self._span("queue", self._child(), SpanKind.INTERNAL, start, end, {}, failed=False)

    def leg(self, side: str, worker: str, *, start: float, attempt: int = 0) -> LegTrace:
        """One leg begins: `side` prefill or decode, `worker` its URL, `attempt` 0 and then the retries."""
        return LegTrace(self, self._child(), side, worker, start, attempt)

    def end(
        self,
        at: float,
        *,
        route: str,
        request_id: str,
        outcome: str,
        status: int,
        model: str = "",
        stream: bool = False,
        first_byte: float | None = None,
        prefill: str = "",
        decode: str = "",
        retries: int = 0,
        error: str = "",
    ) -> None:
        """It is over; call once. `first_byte`: when its answer began; `prefill`, `decode`: the last URLs.

        `error` is a kind (`timeout`, `refused`), never a message; it, or a `status` of 500 and above, makes
        the span a failed one. What a client chose (`model`, `request_id`) is cut to 200 characters.
        """
        if not self.sampled:
            return
        attributes: Attributes = {
            "http.request.method": "POST",
            "http.route": route,
            "http.response.status_code": status,
            "gen_ai.provider.name": "sglang",
            "gen_ai.request.stream": stream,
            "plait.request_id": _clean(request_id),
            "plait.outcome": outcome,
            "plait.retries": retries,
            "plait.queue_seconds": self._queue,
        }
        if operation := _OPERATIONS.get(route):
            attributes["gen_ai.operation.name"] = operation
        if model:
            attributes["gen_ai.request.model"] = _clean(model)
        if first_byte is not None:
            attributes["gen_ai.response.time_to_first_chunk"] = first_byte - self._start
        if prefill:
            attributes["plait.prefill"] = prefill
        if decode:
            attributes["plait.decode"] = decode
        if failed := bool(error) or status >= 500:
            attributes["error.type"] = error or str(status)
        self._span(
            route,
            self._context,
            SpanKind.SERVER,
            self._start,
            at,
            attributes,
            parent=self._parent,
            failed=failed,
        )

    def _child(self) -> SpanContext:
        return self._tracer.child(self._context)

    def _span(
        self,
        name: str,
        context: SpanContext,
        kind: SpanKind,
        start: float,
        end: float,
        attributes: Attributes,
        *,
        failed: bool,
        parent: SpanContext | None = None,
    ) -> None:
        if self.sampled:
            self._tracer.emit(
                name,
                context,
                parent=self._context if context is not self._context else parent,
                kind=kind,
                start_ns=int(start * 1e9) + self._offset_ns,
                end_ns=int(end * 1e9) + self._offset_ns,
                attributes=attributes,
                failed=failed,
            )


class LegTrace:
    """One leg of a request. It may end after its request did."""

    __slots__ = ("_attempt", "_context", "_request", "_side", "_start", "_worker")

    def __init__(
        self, request: RequestTrace, context: SpanContext, side: str, worker: str, start: float, attempt: int
    ) -> None:
        self._request = request
        self._context = context
        self._side = side
        self._worker = worker
        self._start = start
        self._attempt = attempt

    def headers(self) -> list[tuple[bytes, bytes]]:
        """`traceparent` (and `tracestate`) that make what this leg's engine records a part of the leg."""
        return _headers(self._context)

    def end(self, at: float, *, status: int = 0, error: str = "") -> None:
        """It is over. `status` 0: the engine answered nothing. `error` is a kind, never a message."""
        if not self._request.sampled:
            return
        host, port = _address(self._worker)
        attributes: Attributes = {
            "http.request.method": "POST",
            "server.address": host,
            "server.port": port,
            "plait.worker": self._worker,
            "plait.side": self._side,
        }
        if status:
            attributes["http.response.status_code"] = status
        if self._attempt:
            attributes["http.request.resend_count"] = self._attempt
        # For a client of HTTP a 4xx is a failure too (conventions of HTTP spans).
        if failed := bool(error) or status >= 400:
            attributes["error.type"] = error or str(status)
        self._request._span(
            self._side, self._context, SpanKind.CLIENT, self._start, at, attributes, failed=failed
        )


def _headers(context: SpanContext) -> list[tuple[bytes, bytes]]:
    found = [
        (
            b"traceparent",
            b"00-%032x-%016x-%02x" % (context.trace_id, context.span_id, context.trace_flags),
        )
    ]
    if context.trace_state:
        found.append((b"tracestate", context.trace_state.to_header().encode("latin-1")))
    return found


@functools.lru_cache(maxsize=1024)
def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _clean(text: str) -> str:
    """Short, and without what cannot be encoded: one lone surrogate would lose its whole batch."""
    return text[:_MOST_CHARACTERS].encode("utf-8", "replace").decode("utf-8")
