"""Traces of requests, where an operator asks for them: what is shared by on and off.

Off, nothing of OpenTelemetry is loaded and a request costs the look at `Tracer.on`. On, see `otlp`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from plait.router.config import ConfigError

if TYPE_CHECKING:
    from plait.router.spans import RequestTrace

TRACE_HEADERS = frozenset((b"traceparent", b"tracestate"))
"""A client's headers (lower case) that a RequestTrace stands in for: with one, they do not go to engines."""

_FIELD = "otlp_endpoint"
_FIX = "write the collector's OTLP/HTTP address, for example http://collector:4318"


class TraceCounts(NamedTuple):
    """Spans since the start: `exported` to the collector, and `dropped` (it failed, or was too slow)."""

    exported: int
    dropped: int


class Tracer:
    """No traces. `OtlpTracer` makes some."""

    on = False
    """Whether `request` gives anything: look here first."""

    def request(
        self, headers: Iterable[tuple[bytes, bytes]], *, start: float | None = None
    ) -> RequestTrace | None:
        """The trace of one request, or None. `headers` as ASGI gives them, `start` by time.monotonic()."""
        return None

    @property
    def counts(self) -> TraceCounts:
        """Spans so far."""
        return TraceCounts(0, 0)

    def close(self, *, seconds: float = 2.0) -> bool:
        """Send what is left; blocks for at most `seconds`. Whether all of it was sent."""
        return True


OFF = Tracer()


def open_tracer(endpoint: str, *, sample: float = 1.0, instance: str = "") -> Tracer:
    """A tracer that sends to the collector at `endpoint` by OTLP/HTTP; OFF where that is empty.

    `endpoint` without a path gets `/v1/traces`. `sample`: the part of all traces that begin here which is
    kept, 0 to 1 (a client that brings a `traceparent` decides for its own). `instance` tells this process
    from the router's others. Headers, CA file, time limit and delay are OpenTelemetry's own variables
    (OTEL_EXPORTER_OTLP_HEADERS, OTEL_BSP_SCHEDULE_DELAY …).

    It starts a thread: open it after a fork. Raises ConfigError, also where the extra `otlp` is missing.
    """
    if not endpoint:
        return OFF
    url = _traces_url(endpoint)
    if not 0 <= sample <= 1:
        raise ConfigError("otlp_sample", sample, "give a part from 0 to 1")
    try:
        from plait.router.otlp import OtlpTracer
    except ImportError as error:
        raise ConfigError(
            _FIELD, endpoint, f"OpenTelemetry is not installed ({error.name}): pip install 'plait[otlp]'"
        ) from error
    try:
        return OtlpTracer(url, sample=sample, instance=instance)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(_FIELD, endpoint, f"OpenTelemetry refuses its OTEL_… variables: {error}") from error


def _traces_url(endpoint: str) -> str:
    try:
        parts = urlsplit(endpoint.strip())
        _ = parts.port
    except ValueError as error:
        raise ConfigError(_FIELD, endpoint, _FIX) from error
    if parts.username is not None or parts.password is not None:
        # Not repeated: it holds a secret.
        raise ConfigError(
            _FIELD, "(with a user in it)", "give no user here, but OTEL_EXPORTER_OTLP_HEADERS=authorization=…"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(_FIELD, endpoint, _FIX)
    path = parts.path if parts.path.strip("/") else "/v1/traces"
    return f"{parts.scheme}://{parts.netloc}{path}"
