"""The webhook's Prometheus metrics; names, labels and buckets are `plait.telemetry.operator_metrics`'s."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from plait.telemetry import operator_metrics as names
from plait.telemetry.metrics import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class AdmissionMetrics:
    """What one process counts."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._reviews = self._counter(names.REVIEWS)
        self._violations = self._counter(names.VIOLATIONS)
        told = names.REVIEW_SECONDS
        self._seconds = Histogram(
            told.name, told.help, told.labels, buckets=told.buckets, registry=self._registry
        )
        self._expiry: Gauge | None = None

    def reviewed(self, *, webhook: str, kind: str, outcome: str, seconds: float) -> None:
        """One review has been answered. `seconds`: how long it took."""
        self._reviews.labels(webhook, kind, outcome).inc()
        self._seconds.labels(webhook).observe(seconds)

    def violated(self, field: str) -> None:
        """A refusal told about `field`, counted by its section: not by what users write."""
        parts = field.split(".")
        section = ".".join(parts[:2]) if parts[0] == "spec" else parts[0]
        self._violations.labels(section.partition("[")[0]).inc()

    def certificate(self, not_after: float) -> None:
        """A certificate is in force until `not_after`, in seconds since 1970."""
        if self._expiry is None:
            told = names.CERTIFICATE_EXPIRY_SECONDS
            self._expiry = Gauge(told.name, told.help, registry=self._registry)
        self._expiry.set(not_after)

    def text(self) -> bytes:
        """All, as Prometheus reads it."""
        return generate_latest(self._registry)

    def _counter(self, told: Metric) -> Counter:
        return Counter(told.name, told.help, told.labels, registry=self._registry)
