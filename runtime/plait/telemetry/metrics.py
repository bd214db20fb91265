"""Every metric that Plait exports: name, kind, labels, help. The one place of these names.

Plain data, no client library: the router builds its Prometheus objects from it, dashboards and docs are
checked against it, and an engine can name a figure without importing anything.

Names follow the Prometheus rules: base units (seconds, bytes), counters end in `_total` (given here without
the suffix, which the client library appends, so `sample_name` is what a query has to say).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Prometheus metric kinds that Plait uses."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Metric:
    """One metric. `buckets` (upper bounds, in the metric's unit) only for histograms."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def sample_name(self) -> str:
        """The name that a query uses."""
        return {Kind.COUNTER: f"{self.name}_total", Kind.HISTOGRAM: f"{self.name}_count"}.get(
            self.kind, self.name
        )


# From a cached chat answer to a long prefill: 5 ms to 10 min.
_LATENCY = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)

# The router's own work.
REQUESTS = Metric(
    "plait_router_requests",
    Kind.COUNTER,
    "Requests by route and outcome (ok, refused, no_pair, prefill_failed, decode_failed, client_gone, "
    "draining, fault: a bug of the router).",
    ("route", "outcome"),
)
IN_FLIGHT = Metric("plait_router_in_flight", Kind.GAUGE, "Requests that have not been answered in full yet.")
FIRST_BYTE_SECONDS = Metric(
    "plait_router_first_byte_seconds",
    Kind.HISTOGRAM,
    "From the request's last byte in to the answer's first byte out.",
    ("route",),
    _LATENCY,
)
REQUEST_SECONDS = Metric(
    "plait_router_request_seconds",
    Kind.HISTOGRAM,
    "From the request's last byte in to the answer's last byte out.",
    ("route",),
    _LATENCY,
)
LEG_FAILURES = Metric(
    "plait_router_leg_failures",
    Kind.COUNTER,
    "Failed legs by the side and worker that failed and how (refused, status, timeout, broken, aborted, "
    "too_large).",
    ("side", "worker", "kind"),
)
ABORTS = Metric(
    "plait_router_aborts",
    Kind.COUNTER,
    "Abort messages to engines by result (taken, refused, unreachable).",
    ("side", "worker", "result"),
)
WORKER_READY = Metric(
    "plait_router_worker_ready",
    Kind.GAUGE,
    "1 while the worker is in rotation (alive, plugin loaded, and a partner with an equal contract).",
    ("side", "worker"),
)
WORKER_IN_FLIGHT = Metric(
    "plait_router_worker_in_flight", Kind.GAUGE, "Legs under way on a worker.", ("side", "worker")
)
WORKER_STATUS_AGE_SECONDS = Metric(
    "plait_router_worker_status_age_seconds",
    Kind.GAUGE,
    "Age of the last status that the worker gave; absent until it gave one.",
    ("side", "worker"),
)
PAIRS_READY = Metric(
    "plait_router_pairs_ready", Kind.GAUGE, "Pairs of prefill and decode with equal contracts, both alive."
)

# The engines' figures, as their status says them; the router exports them for all its workers.
_RANK = ("side", "worker", "rank")
CACHE_PAGES = Metric(
    "plait_cache_pages", Kind.GAUGE, "Pages of a rank's pool by state (owned, free, used, in_flight).",
    (*_RANK, "state"),
)  # fmt: skip
CACHE_BYTES = Metric(
    "plait_cache_bytes", Kind.GAUGE, "Allocated tensor bytes of a rank by pool (mla, index, scratch).",
    (*_RANK, "pool"),
)  # fmt: skip
CAPACITY_TOKENS = Metric(
    "plait_capacity_tokens",
    Kind.GAUGE,
    "Tokens a group can hold, and what the replicated layout would hold at the same bytes per rank.",
    ("side", "worker", "layout"),
)
SCRATCH_TOKENS = Metric(
    "plait_scratch_tokens", Kind.GAUGE, "Tokens that the dense scratch of a group holds.", ("side", "worker")
)
GATHER_BYTES = Metric("plait_gather_bytes", Kind.COUNTER, "Bytes gathered from other ranks.", _RANK)
GATHER_SECONDS = Metric("plait_gather_seconds", Kind.COUNTER, "Seconds spent gathering.", _RANK)
PREFETCHES = Metric(
    "plait_prefetch",
    Kind.COUNTER,
    "Dense views by what the prefetch did (hit, late, fallback).",
    (*_RANK, "result"),
)
TRANSFER_PAGES = Metric("plait_transfer_pages", Kind.COUNTER, "Pages sent or received by a rank.", _RANK)
TRANSFER_BYTES = Metric("plait_transfer_bytes", Kind.COUNTER, "Bytes sent or received by a rank.", _RANK)
TRANSFER_SECONDS = Metric("plait_transfer_seconds", Kind.COUNTER, "Seconds spent in transfers.", _RANK)
TRANSFER_FAILURES = Metric("plait_transfer_failures", Kind.COUNTER, "Failed transfers of a rank.", _RANK)
SPLIT_IMBALANCE = Metric(
    "plait_split_imbalance",
    Kind.GAUGE,
    "Most loaded rank's computed tokens over the mean, since the start (1: even).",
    _RANK,
)
OFF_LANE_PAGES = Metric(
    "plait_split_off_lane_pages", Kind.COUNTER, "Pages taken from another lane than the preferred one.", _RANK
)
INTEGRITY_RUNS = Metric("plait_integrity_runs", Kind.COUNTER, "Runs of the page accounting check.", _RANK)
INTEGRITY_FAILURES = Metric(
    "plait_integrity_failures", Kind.COUNTER, "Violations that the page accounting check found.", _RANK
)
ENGINE_REQUESTS = Metric(
    "plait_engine_requests",
    Kind.GAUGE,
    "Requests in an engine's rank by state (running, queued).",
    (*_RANK, "state"),
)

ROUTER_METRICS: tuple[Metric, ...] = (
    REQUESTS,
    IN_FLIGHT,
    FIRST_BYTE_SECONDS,
    REQUEST_SECONDS,
    LEG_FAILURES,
    ABORTS,
    WORKER_READY,
    WORKER_IN_FLIGHT,
    WORKER_STATUS_AGE_SECONDS,
    PAIRS_READY,
)
ENGINE_METRICS: tuple[Metric, ...] = (
    CACHE_PAGES,
    CACHE_BYTES,
    CAPACITY_TOKENS,
    SCRATCH_TOKENS,
    GATHER_BYTES,
    GATHER_SECONDS,
    PREFETCHES,
    TRANSFER_PAGES,
    TRANSFER_BYTES,
    TRANSFER_SECONDS,
    TRANSFER_FAILURES,
    SPLIT_IMBALANCE,
    OFF_LANE_PAGES,
    INTEGRITY_RUNS,
    INTEGRITY_FAILURES,
    ENGINE_REQUESTS,
)
ALL_METRICS: tuple[Metric, ...] = ROUTER_METRICS + ENGINE_METRICS
