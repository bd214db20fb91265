"""The router's Prometheus metrics: its own work, and the figures of the engines behind it.

Names and labels come from `plait.telemetry.metrics`; nothing is named here. What the processes count is in
their reports (`tally`); the rest is read at each scrape from a `Figures`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol, get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from plait.contract.status import EngineStatus, GatherPathName, PeerState, RankStatus
from plait.router.tally import Count, Row, Tallies, added, families
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
    """What one process counts (several routers may live in one process)."""

    def __init__(self) -> None:
        self.tallies = Tallies()
        self._prefill_phase = self.tallies.timing(names.PHASE_SECONDS, "prefill")
        self._decode_phase = self.tallies.timing(names.PHASE_SECONDS, "decode")
        self._matched = self.tallies.count(names.PREFIX_PAGES, "matched")
        self._pages = self.tallies.count(names.PREFIX_PAGES, "all")
        # Seconds between two pieces of a stream; called for each, so it is the bound method itself.
        self.gap: Callable[[float], None] = self.tallies.timing(names.INTER_TOKEN_SECONDS).observe

    def route(self, route: str) -> RouteMetrics:
        """Those of one route."""
        return RouteMetrics(route, self.tallies)

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
        self.tallies.count(names.LEG_FAILURES, error.side, worker.url, error.kind).inc()

    def retried(self, error: LegError) -> None:
        """A request gets another try after `error`."""
        self.tallies.count(names.RETRIES, error.side, error.kind).inc()

    def aborted(self, worker: Worker, result: str) -> None:
        """An abort message was `taken`, `refused`, or the worker `unreachable`."""
        self.tallies.count(names.ABORTS, worker.side, worker.url, result).inc()

    def connected(self, side: str, seconds: float) -> None:
        """A connection to an engine was opened."""
        self.tallies.timing(names.CONNECT_SECONDS, side).observe(seconds)


class RouteMetrics:
    """What is counted for each request of one route. Looks nothing up that it has seen before."""

    def __init__(self, route: str, tallies: Tallies) -> None:
        self._route = route
        self._tallies = tallies
        self._first_byte = tallies.timing(names.FIRST_BYTE_SECONDS, route)
        self._seconds = tallies.timing(names.REQUEST_SECONDS, route)
        self._queue = tallies.timing(names.QUEUE_SECONDS)
        self._by_outcome: dict[str, Count] = {}
        self._by_why: dict[str, Count] = {}

    def ended(self, outcome: str, *, arrived: float, first: float | None, now: float) -> None:
        """A request has ended. Times of one clock: its last byte in, its answer's first byte out (None: none
        went out), and now.
        """
        count = self._by_outcome.get(outcome)
        if count is None:
            count = self._by_outcome[outcome] = self._tallies.count(names.REQUESTS, self._route, outcome)
        count.inc()
        self._seconds.observe(now - arrived)
        if first is not None:
            self._first_byte.observe(first - arrived)

    def exchanged(self, exchange: Exchange) -> None:
        """It had got as far as to look for a pair."""
        if exchange.queued:
            self._queue.observe(exchange.queued)
        if exchange.lease is not None:
            why = exchange.lease.why
            count = self._by_why.get(why)
            if count is None:
                count = self._by_why[why] = self._tallies.count(names.PLACEMENTS, why)
            count.inc()


class Figures(Protocol):
    """What a scrape reads beside the counters."""

    @property
    def workers(self) -> Registry: ...

    @property
    def source(self) -> Source: ...

    @property
    def reports(self) -> list[Report]:
        """Of each process that serves clients."""

    @property
    def ended(self) -> list[Row]:
        """What processes that have ended had counted."""


def render(figures: Figures) -> bytes:
    """All metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Figures(figures))
    return generate_latest(registry)


class _Figures(Collector):
    """All of it, once."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily]:
        registry, reports, source = self._figures.workers, self._figures.reports, self._figures.source
        yield from families(added([self._figures.ended, *(r.tallies for r in reports)]))
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


def mean_run(rank: RankStatus) -> float | None:
    """Mean pages of a run since the start; None before the first one."""
    return rank.gather.run_pages / rank.gather.runs if rank.gather.runs else None


def _family(metric: names.Metric, samples: Iterable[_Sample]) -> GaugeMetricFamily | CounterMetricFamily:
    kind = CounterMetricFamily if metric.kind is names.Kind.COUNTER else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def _one(read: Callable[[RankStatus], float]) -> Callable[[RankStatus], list[_Sample]]:
    return lambda rank: [((), read(rank))]


_PATHS: tuple[GatherPathName, ...] = get_args(GatherPathName)
_ENGINE: dict[names.Metric, Callable[[EngineStatus], list[_Sample]]] = {
    names.CAPACITY_TOKENS: lambda s: [
        (("in_force",), s.capacity.tokens),
        (("replicated",), s.capacity.tokens_replicated),
    ],
    names.SCRATCH_TOKENS: lambda s: [((), s.capacity.scratch_tokens)],
    names.KERNELS: lambda s: [
        ((how,), sum(k.implementation == how for k in s.kernels)) for how in ("triton", "torch")
    ],
}
_RANK: dict[names.Metric, Callable[[RankStatus], list[_Sample]]] = {
    names.CACHE_PAGES: lambda r: [((state,), n) for state, n in r.pages.model_dump().items()],
    names.CACHE_BYTES: lambda r: [((pool,), n) for pool, n in r.bytes.model_dump().items()],
    names.GATHER_BYTES: _one(lambda r: r.gather.bytes),
    names.GATHER_SECONDS: _one(lambda r: r.gather.seconds),
    names.GATHER_BATCHES: lambda r: [((path,), r.gather.batches.get(path, 0)) for path in _PATHS],
    names.GATHER_PAGES: lambda r: [
        (("run",), r.gather.run_pages),
        (("fragment",), r.gather.fragment_pages),
    ],
    names.GATHER_RUNS: _one(lambda r: r.gather.runs),
    names.RUN_PAGES: lambda r: [] if (pages := mean_run(r)) is None else [((), pages)],
    names.PEER_MEMORY: lambda r: [((state,), r.peers.state == state) for state in get_args(PeerState)],
    names.PEER_FALLBACKS: _one(lambda r: r.peers.fallbacks),
    names.BARRIER_TIMEOUTS: _one(lambda r: r.peers.timeouts),
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
