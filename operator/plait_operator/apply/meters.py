"""The operator's own figures, as Prometheus objects. Names come from `plait.telemetry.operator_metrics`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from plait.telemetry import operator_metrics as names
from plait.telemetry.metrics import Metric


class Meters:
    """One set of meters, in a registry of its own (a test may have many)."""

    def __init__(self) -> None:
        # A creation time beside every counter would double what is scraped.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.writes = self._counter(names.WRITES)
        self.request_seconds = self._histogram(names.API_SECONDS)
        self.reconciles = self._counter(names.RECONCILES)
        self.reconcile_seconds = self._histogram(names.RECONCILE_SECONDS)
        self.plan_seconds = self._histogram(names.PLAN_SECONDS)
        self.reaction_seconds = self._histogram(names.REACTION_SECONDS)
        self.queue_depth = self._gauge(names.QUEUE_DEPTH)
        self.retries = self._counter(names.RETRIES)
        self.watch_events = self._counter(names.WATCH_EVENTS)
        self.lists = self._counter(names.LISTS)
        self.lost_deletes = self._counter(names.LOST_DELETES)
        self.objects = self._gauge(names.OBJECTS)
        self.leader = self._gauge(names.LEADER)
        self.router_polls = self._counter(names.ROUTER_POLLS)

    def _counter(self, metric: Metric) -> Counter:
        return Counter(metric.name, metric.help, metric.labels, registry=self.registry)

    def _gauge(self, metric: Metric) -> Gauge:
        return Gauge(metric.name, metric.help, metric.labels, registry=self.registry)

    def _histogram(self, metric: Metric) -> Histogram:
        return Histogram(
            metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=self.registry
        )
