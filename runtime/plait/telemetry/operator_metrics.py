"""Metrics of the operator and of its admission webhook: names, labels, help. Plain data, as `metrics`."""

from __future__ import annotations

from plait.telemetry.metrics import Kind, Metric

_SHORT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

# The controller.
WRITES = Metric(
    "plait_operator_writes",
    Kind.COUNTER,
    "Writes to the API server by kind, verb (apply, delete, gate, finalizer, status, event, lease, secret, "
    "bundle) and result (done, unreachable, or the HTTP code of the refusal). Nothing changed: none.",
    ("kind", "verb", "result"),
)
API_SECONDS = Metric(
    "plait_operator_api_seconds", Kind.HISTOGRAM, "Requests to the API server by verb.", ("verb",), _SHORT
)
RECONCILES = Metric(
    "plait_operator_reconciles",
    Kind.COUNTER,
    "Looks at one deployment by result (done, refused: the API server refused something, unreachable, "
    "unreadable: the spec has no known form, gone, early: its namespace is not known yet, fault: a bug of "
    "the operator).",
    ("result",),
)
RECONCILE_SECONDS = Metric(
    "plait_operator_reconcile_seconds",
    Kind.HISTOGRAM,
    "One look at a deployment, writes included.",
    (),
    _SHORT,
)
PLAN_SECONDS = Metric(
    "plait_operator_plan_seconds", Kind.HISTOGRAM, "Making one plan (no writes in it).", (), _SHORT
)
REACTION_SECONDS = Metric(
    "plait_operator_reaction_seconds",
    Kind.HISTOGRAM,
    "From the first event about a deployment to the last write that answers it.",
    (),
    _SHORT,
)
QUEUE_DEPTH = Metric("plait_operator_queue_depth", Kind.GAUGE, "Deployments that wait for a worker now.")
RETRIES = Metric("plait_operator_retries", Kind.COUNTER, "Deployments put back after a failure.")
WATCH_EVENTS = Metric(
    "plait_operator_watch_events", Kind.COUNTER, "Events of the watches by kind.", ("kind",)
)
LISTS = Metric(
    "plait_operator_lists",
    Kind.COUNTER,
    "Whole lists by kind and why (start, resync, gone: the watch was too far behind, trouble).",
    ("kind", "why"),
)
LOST_DELETES = Metric(
    "plait_operator_lost_deletes",
    Kind.COUNTER,
    "Objects that a list showed to be gone and no watch had told of.",
    ("kind",),
)
OBJECTS = Metric("plait_operator_objects", Kind.GAUGE, "Objects held in memory by kind.", ("kind",))
LEADER = Metric("plait_operator_leader", Kind.GAUGE, "1 while this process is the leader.")
ROUTER_POLLS = Metric(
    "plait_operator_router_polls",
    Kind.COUNTER,
    "Questions to routers by result (answered, unreachable, refused, unreadable).",
    ("result",),
)

CONTROLLER_METRICS: tuple[Metric, ...] = (
    WRITES,
    API_SECONDS,
    RECONCILES,
    RECONCILE_SECONDS,
    PLAN_SECONDS,
    REACTION_SECONDS,
    QUEUE_DEPTH,
    RETRIES,
    WATCH_EVENTS,
    LISTS,
    LOST_DELETES,
    OBJECTS,
    LEADER,
    ROUTER_POLLS,
)

# The admission webhook.
REVIEWS = Metric(
    "plait_admission_reviews",
    Kind.COUNTER,
    "Reviews by webhook (mutate, validate), kind and outcome (allowed, patched, refused, malformed: no "
    "review at all, fault: a bug of the webhook, which refuses).",
    ("webhook", "kind", "outcome"),
)
REVIEW_SECONDS = Metric(
    "plait_admission_review_seconds",
    Kind.HISTOGRAM,
    "From a review's last byte in to its answer.",
    ("webhook",),
    _SHORT,
)
VIOLATIONS = Metric(
    "plait_admission_violations", Kind.COUNTER, "Violations that refusals told, by section of the manifest.",
    ("section",),
)  # fmt: skip
CERTIFICATE_EXPIRY_SECONDS = Metric(
    "plait_admission_certificate_expiry_seconds",
    Kind.GAUGE,
    "When the certificate in force runs out, in seconds since 1970; absent until there is one.",
)

ADMISSION_METRICS: tuple[Metric, ...] = (
    REVIEWS,
    REVIEW_SECONDS,
    VIOLATIONS,
    CERTIFICATE_EXPIRY_SECONDS,
)
