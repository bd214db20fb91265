"""The router's Prometheus metrics: its own work, and the figures of the engines behind it.

Names and labels come from `plait.telemetry.metrics`; nothing is named here. What a process counts lives in
the client library (which adds the processes of one router up, through files, where there are several);
what is read at each scrape comes from a `Figures`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from plait.contract.status import EngineStatus, RankStatus
from plait.router.processes.folder import MULTIPROC_DIR
from plait.telemetry import metrics as names

if TYPE_CHECKING:
    from plait.router.discovery.source import Source
    from plait.router.exchange import Exchange
    from plait.router.leg import Leg, LegError
    from plait.router.registry import Registry
    from plait.router.report import Report
    from plait.router.workers import Worker

_Sample = tuple[tuple[str, ...], float]


class RouterMetrics:
    """Counters of one process, with their own registry (several routers may live in one process)."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = self._counter(names.REQUESTS)
        self._leg_failures = self._counter(names.LEG_FAILURES)
        self._retries = self._counter(names.RETRIES)
        self._aborts = self._counter(names.ABORTS)
        self._placements = self._counter(names.PLACEMENTS)
        self._first_byte = self._histogram(names.FIRST_BYTE_SECONDS)
        self._seconds = self._histogram(names.REQUEST_SECONDS)
        self._queue = self._histogram(names.QUEUE_SECONDS)
        self._connect = self._histogram(names.CONNECT_SECONDS)
        phases = self._histogram(names.PHASE_SECONDS)
        pages = self._counter(names.PREFIX_PAGES)
        self._matched, self._pages = pages.labels("matched"), pages.labels("all")
        self._prefill_phase, self._decode_phase = phases.labels("prefill"), phases.labels("decode")
        # Seconds between two pieces of a stream; called for each, so it is the bound method itself.
        self.gap: Callable[[float], None] = self._histogram(names.INTER_TOKEN_SECONDS).observe

    def route(self, route: str) -> RouteMetrics:
        """Those of one route."""
        return RouteMetrics(
            route,
            self._requests,
            self._first_byte.labels(route),
            self._seconds.labels(route),
            self._queue,
            self._placements,
        )

    def leg_done(self, leg: Leg) -> None:
        """A leg has answered in full."""
        if leg.relayed:
            self._decode_phase.observe(leg.ended_at - leg.first_at)
        else:
            self._prefill_phase.observe(leg.ended_at - leg.started_at)

    def prefix(self, *, matched: int, pages: int) -> None:
        """A prompt of `pages` was placed where `matched` of them had been before."""
        self._pages.inc(pages)
        self._matched.inc(matched)

    def leg_failed(self, error: LegError, worker: Worker) -> None:
        """A leg on `worker` failed."""
        self._leg_failures.labels(error.side, worker.url, error.kind).inc()

    def retried(self, error: LegError) -> None:
        """A request gets another try after `error`."""
        self._retries.labels(error.side, error.kind).inc()

    def aborted(self, worker: Worker, result: str) -> None:
        """An abort message was `taken`, `refused`, or the worker `unreachable`."""
        self._aborts.labels(worker.side, worker.url, result).inc()

    def connected(self, side: str, seconds: float) -> None:
        """A connection to an engine was opened."""
        self._connect.labels(side).observe(seconds)

    def _counter(self, metric: names.Metric) -> Counter:
        return Counter(metric.name, metric.help, metric.labels, registry=self.registry)

    def _histogram(self, metric: names.Metric) -> Histogram:
        return Histogram(
            metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=self.registry
        )


class RouteMetrics:
    """What is counted for each request of one route. Looks nothing up that it has seen before."""

    def __init__(
        self,
        route: str,
        requests: Counter,
        first_byte: Histogram,
        seconds: Histogram,
        queue: Histogram,
        placements: Counter,
    ) -> None:
        self._route = route
        self._requests = requests
        self._first_byte = first_byte
        self._seconds = seconds
        self._queue = queue
        self._placements = placements
        self._by_outcome: dict[str, Counter] = {}
        self._by_why: dict[str, Counter] = {}

    def ended(self, outcome: str, *, arrived: float, first: float | None, now: float) -> None:
        """A request has ended. Times of one clock: its last byte in, its answer's first byte out (None: none
        went out), and now.
        """
        counter = self._by_outcome.get(outcome)
        if counter is None:
            counter = self._by_outcome[outcome] = self._requests.labels(self._route, outcome)
        counter.inc()
        self._seconds.observe(now - arrived)
        if first is not None:
            self._first_byte.observe(first - arrived)

    def exchanged(self, exchange: Exchange) -> None:
        """It had got as far as to look for a pair."""
        if exchange.queued:
            self._queue.observe(exchange.queued)
        if exchange.lease is not None:
            why = exchange.lease.why
            counter = self._by_why.get(why)
            if counter is None:
                counter = self._by_why[why] = self._placements.labels(why)
            counter.inc()


class Figures(Protocol):
    """What a scrape reads beside the counters."""

    @property
    def workers(self) -> Registry: ...

    @property
    def source(self) -> Source: ...

    @property
    def reports(self) -> list[Report]:
        """Of each process that serves clients."""


def render(own: RouterMetrics, figures: Figures) -> bytes:
    """All metrics in Prometheus' text format; of all processes of this router, where it has several."""
    registry = CollectorRegistry()
    registry.register(_Figures(figures))
    if folder := os.environ.get(MULTIPROC_DIR):
        MultiProcessCollector(registry, path=folder)  # type: ignore[no-untyped-call]
        return generate_latest(registry)
    return generate_latest(own.registry) + generate_latest(registry)


class _Figures(Collector):
    """Figures that are read from the workers' last status, and from the processes, at each scrape."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        registry, reports, source = self._figures.workers, self._figures.reports, self._figures.source
        yield _family(names.PROCESSES, [((), len(reports))])
        yield _family(names.IN_FLIGHT, [((), sum(r.in_flight for r in reports))])
        yield _family(names.QUEUED, [((), sum(r.queued for r in reports))])
        workers = registry.workers
        reasons = registry.reasons()
        yield _family(
            names.WORKER_READY, [((w.side, w.url), 0.0 if reasons[w.url] else 1.0) for w in workers]
        )
        yield _family(
            names.WORKER_IN_FLIGHT,
            [((w.side, w.url), sum(r.legs.get(w.url, 0) for r in reports)) for w in workers],
        )
        yield _family(
            names.BREAKER,
            [
                ((w.side, w.url, state), sum(r.breakers.get(w.url) == state for r in reports))
                for w in workers
                for state in ("closed", "open", "half-open")
            ],
        )
        yield _family(
            names.WORKER_STATUS_AGE_SECONDS,
            [((w.side, w.url), w.age) for w in workers if w.age is not None],
        )
        yield _family(names.PAIRS_READY, [((), len(registry.pairs()))])
        yield _family(names.DISCOVERY_PROBLEM, [((source.kind,), 1.0 if source.problem else 0.0)])
        age = source.age
        yield _family(names.DISCOVERY_AGE_SECONDS, [] if age is None else [((source.kind,), age)])
        told = [(w, w.status) for w in workers if w.status is not None]
        for metric, read in _ENGINE.items():
            yield _family(metric, [((w.side, w.url, *more), v) for w, s in told for more, v in read(s)])
        for metric, read_rank in _RANK.items():
            yield _family(
                metric,
                [
                    ((w.side, w.url, str(rank.rank), *more), v)
                    for w, s in told
                    for rank in s.ranks
                    for more, v in read_rank(rank)
                ],
            )


def imbalance(rank: RankStatus) -> float | None:
    """Most loaded rank's computed tokens over the mean since the start; None before the first forward."""
    return rank.split.max_tokens / rank.split.mean_tokens if rank.split.mean_tokens > 0 else None


def _family(metric: names.Metric, samples: Iterable[_Sample]) -> GaugeMetricFamily | CounterMetricFamily:
    kind = CounterMetricFamily if metric.kind is names.Kind.COUNTER else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def _one(read: Callable[[RankStatus], float]) -> Callable[[RankStatus], list[_Sample]]:
    return lambda rank: [((), read(rank))]


_ENGINE: dict[names.Metric, Callable[[EngineStatus], list[_Sample]]] = {
    names.CAPACITY_TOKENS: lambda s: [
        (("in_force",), s.capacity.tokens),
        (("replicated",), s.capacity.tokens_replicated),
    ],
    names.SCRATCH_TOKENS: lambda s: [((), s.capacity.scratch_tokens)],
}
_RANK: dict[names.Metric, Callable[[RankStatus], list[_Sample]]] = {
    names.CACHE_PAGES: lambda r: [((state,), n) for state, n in r.pages.model_dump().items()],
    names.CACHE_BYTES: lambda r: [((pool,), n) for pool, n in r.bytes.model_dump().items()],
    names.GATHER_BYTES: _one(lambda r: r.gather.bytes),
    names.GATHER_SECONDS: _one(lambda r: r.gather.seconds),
    names.PREFETCHES: lambda r: [
        (("hit",), r.gather.hit),
        (("late",), r.gather.late),
        (("fallback",), r.gather.fallback),
    ],
    names.TRANSFER_PAGES: _one(lambda r: r.transfer.pages),
    names.TRANSFER_BYTES: _one(lambda r: r.transfer.bytes),
    names.TRANSFER_SECONDS: _one(lambda r: r.transfer.seconds),
    names.TRANSFER_FAILURES: _one(lambda r: r.transfer.failures),
    names.SPLIT_IMBALANCE: lambda r: [] if (ratio := imbalance(r)) is None else [((), ratio)],
    names.OFF_LANE_PAGES: _one(lambda r: r.split.off_lane_pages),
    names.INTEGRITY_RUNS: _one(lambda r: r.integrity.runs),
    names.INTEGRITY_FAILURES: _one(lambda r: r.integrity.failures),
    names.ENGINE_REQUESTS: lambda r: [(("running",), r.running), (("queued",), r.queued)],
}
