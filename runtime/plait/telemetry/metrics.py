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

# Between two tokens of a stream, and other short waits: 1 ms to 5 s.
_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

# The router's own work.
REQUESTS = Metric(
    "plait_router_requests",
    Kind.COUNTER,
    "Requests by route and outcome (ok, refused, unauthorized, rate_limited, no_pair, queue_full, "
    "queue_timeout, prefill_failed, decode_failed, total_timeout, client_gone, draining, fault: a bug of the "
    "router).",
    ("route", "outcome"),
)
IN_FLIGHT = Metric("plait_router_in_flight", Kind.GAUGE, "Requests that have not been answered in full yet.")
QUEUED = Metric("plait_router_queued", Kind.GAUGE, "Requests that wait for a worker with room.")
FIRST_BYTE_SECONDS = Metric(
    "plait_router_first_byte_seconds",
    Kind.HISTOGRAM,
    "From the request's last byte in to the answer's first byte out: of streams, the time to first token.",
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
INTER_TOKEN_SECONDS = Metric(
    "plait_router_inter_token_seconds",
    Kind.HISTOGRAM,
    "Between two pieces of a stream (an engine's event or several) as they pass the router.",
    (),
    _SHORT,
)
QUEUE_SECONDS = Metric(
    "plait_router_queue_seconds",
    Kind.HISTOGRAM,
    "Waits for a worker with room, of the requests that had to wait.",
    (),
    _LATENCY,
)
CONNECT_SECONDS = Metric(
    "plait_router_connect_seconds", Kind.HISTOGRAM, "Opening a connection to an engine.", ("side",), _SHORT
)
PHASE_SECONDS = Metric(
    "plait_router_phase_seconds",
    Kind.HISTOGRAM,
    "Phases of answered requests: prefill from its request to its answer, decode from its first byte to its "
    "last.",
    ("phase",),
    _LATENCY,
)
LEG_FAILURES = Metric(
    "plait_router_leg_failures",
    Kind.COUNTER,
    "Failed legs by the side and worker that failed and how (refused, stale, status, timeout, broken, "
    "aborted, too_large).",
    ("side", "worker", "kind"),
)
RETRIES = Metric(
    "plait_router_retries",
    Kind.COUNTER,
    "Further tries of requests, by the side that had failed and how.",
    ("side", "kind"),
)
ABORTS = Metric(
    "plait_router_aborts",
    Kind.COUNTER,
    "Abort messages to engines by result (taken, refused, unreachable).",
    ("side", "worker", "result"),
)
PLACEMENTS = Metric(
    "plait_router_placements",
    Kind.COUNTER,
    "Prefill workers chosen by what decided (sticky, owner, home, spill, policy).",
    ("why",),
)
PREFIX_PAGES = Metric(
    "plait_router_prefix_pages",
    Kind.COUNTER,
    "Pages of prompts (64 tokens, estimated): all, and those that were in requests sent to the same prefill "
    "worker before. An estimate of the prefix hit, made without the engines.",
    ("part",),
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
BREAKER = Metric(
    "plait_router_breaker",
    Kind.GAUGE,
    "Processes of the router whose circuit breaker of the worker is in this state (closed, open, half-open).",
    ("side", "worker", "state"),
)
PAIRS_READY = Metric(
    "plait_router_pairs_ready", Kind.GAUGE, "Pairs of prefill and decode with equal contracts, both alive."
)
DISCOVERY_AGE_SECONDS = Metric(
    "plait_router_discovery_age_seconds",
    Kind.GAUGE,
    "Seconds since the list of workers was last known to be true; absent until it was.",
    ("source",),
)
DISCOVERY_PROBLEM = Metric(
    "plait_router_discovery_problem",
    Kind.GAUGE,
    "1 while the source of workers is in trouble (the last known list stays in force).",
    ("source",),
)
PROCESSES = Metric("plait_router_processes", Kind.GAUGE, "Processes of this router that serve clients.")

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
GATHER_BATCHES = Metric(
    "plait_gather_batches",
    Kind.COUNTER,
    "Batches by how their prefix part was fetched (none: no prefix; copy, pull, collective, peer-view).",
    (*_RANK, "path"),
)
GATHER_PAGES = Metric(
    "plait_gather_pages",
    Kind.COUNTER,
    "Pages of prefix parts, once per batch (run: consecutive, worth a copy; fragment: for the kernel).",
    (*_RANK, "part"),
)
GATHER_RUNS = Metric("plait_gather_runs", Kind.COUNTER, "Copies of runs, once per batch.", _RANK)
RUN_PAGES = Metric("plait_gather_run_pages", Kind.GAUGE, "Mean pages of a run, since the start.", _RANK)
PEER_MEMORY = Metric(
    "plait_peer_memory",
    Kind.GAUGE,
    "1 for the state of pools that ranks map into each other (mapped, off, unused, refused: collectives).",
    (*_RANK, "state"),
)
PEER_FALLBACKS = Metric("plait_peer_fallbacks", Kind.COUNTER, "Times that mapping was refused.", _RANK)
BARRIER_TIMEOUTS = Metric(
    "plait_barrier_timeouts", Kind.COUNTER, "Barriers of a forward that a rank was missing at.", _RANK
)
KERNELS = Metric(
    "plait_kernels",
    Kind.GAUGE,
    "Kernels of an engine by implementation (triton, torch).",
    ("side", "worker", "implementation"),
)
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
    QUEUED,
    FIRST_BYTE_SECONDS,
    REQUEST_SECONDS,
    INTER_TOKEN_SECONDS,
    QUEUE_SECONDS,
    CONNECT_SECONDS,
    PHASE_SECONDS,
    LEG_FAILURES,
    RETRIES,
    ABORTS,
    PLACEMENTS,
    PREFIX_PAGES,
    WORKER_READY,
    WORKER_IN_FLIGHT,
    WORKER_STATUS_AGE_SECONDS,
    BREAKER,
    PAIRS_READY,
    DISCOVERY_AGE_SECONDS,
    DISCOVERY_PROBLEM,
    PROCESSES,
)
ENGINE_METRICS: tuple[Metric, ...] = (
    CACHE_PAGES,
    CACHE_BYTES,
    CAPACITY_TOKENS,
    SCRATCH_TOKENS,
    GATHER_BYTES,
    GATHER_SECONDS,
    GATHER_BATCHES,
    GATHER_PAGES,
    GATHER_RUNS,
    RUN_PAGES,
    PEER_MEMORY,
    PEER_FALLBACKS,
    BARRIER_TIMEOUTS,
    KERNELS,
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
