"""The router's Prometheus metrics: its own work, and the figures of the engines behind it.

Names and labels come from `plait.telemetry.metrics`; nothing is named here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from plait.contract.status import EngineStatus, RankStatus
from plait.router.upstream import LegError
from plait.router.workers import Registry, Worker
from plait.telemetry import metrics as names

_Sample = tuple[tuple[str, ...], float]


class RouterMetrics:
    """Counters of one router, with their own registry (several routers may live in one process)."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = self._counter(names.REQUESTS)
        self._leg_failures = self._counter(names.LEG_FAILURES)
        self._aborts = self._counter(names.ABORTS)
        self._first_byte = self._histogram(names.FIRST_BYTE_SECONDS)
        self._seconds = self._histogram(names.REQUEST_SECONDS)
        self.in_flight = Gauge(names.IN_FLIGHT.name, names.IN_FLIGHT.help, registry=self.registry)

    def watch(self, workers: Registry) -> None:
        """Export the figures of `workers` too."""
        self.registry.register(_Workers(workers))

    def render(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def request(self, *, route: str, outcome: str, seconds: float, first_byte: float | None) -> None:
        """A request has ended. `seconds` it took, `first_byte` until its answer began (None: none did)."""
        self._requests.labels(route, outcome).inc()
        self._seconds.labels(route).observe(seconds)
        if first_byte is not None:
            self._first_byte.labels(route).observe(first_byte)

    def leg_failed(self, error: LegError, worker: Worker) -> None:
        """A leg on `worker` failed."""
        self._leg_failures.labels(error.side, worker.url, error.kind).inc()

    def aborted(self, worker: Worker, result: str) -> None:
        """An abort message was `taken`, `refused`, or the worker `unreachable`."""
        self._aborts.labels(worker.side, worker.url, result).inc()

    def _counter(self, metric: names.Metric) -> Counter:
        return Counter(metric.name, metric.help, metric.labels, registry=self.registry)

    def _histogram(self, metric: names.Metric) -> Histogram:
        return Histogram(
            metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=self.registry
        )


class _Workers(Collector):
    """Figures that are read from the workers' last status at each scrape."""

    def __init__(self, workers: Registry) -> None:
        self._workers = workers

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        workers = self._workers.workers
        reasons = self._workers.reasons()
        yield _family(
            names.WORKER_READY, [((w.side, w.url), 0.0 if reasons[w.url] else 1.0) for w in workers]
        )
        yield _family(names.WORKER_IN_FLIGHT, [((w.side, w.url), w.in_flight) for w in workers])
        yield _family(
            names.WORKER_STATUS_AGE_SECONDS,
            [((w.side, w.url), w.age) for w in workers if w.age is not None],
        )
        yield _family(names.PAIRS_READY, [((), len(self._workers.pairs()))])
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
