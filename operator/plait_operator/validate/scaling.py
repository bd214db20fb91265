"""Counts: replicas, rollout budgets, autoscaling."""

from __future__ import annotations

from collections.abc import Iterator

from plait.contract.violation import Violation
from plait_operator.api.spec import RoleAutoscaling, SharedKVDeploymentSpec
from plait_operator.validate.schema import check
from plait_operator.validate.wording import INT32

LONGEST_DRAIN_S = 86400
"""A day: a pod that may take longer to go is one that never goes."""

# type of a metric -> the field that holds it (autoscaling/v2).
_METRICS = {
    "Resource": "resource",
    "ContainerResource": "containerResource",
    "Pods": "pods",
    "Object": "object",
    "External": "external",
}


def count_violations(spec: SharedKVDeploymentSpec) -> Iterator[Violation]:
    """Counts that the API server would not take in the children."""
    counts = {
        "spec.prefill.replicas": spec.prefill.replicas,
        "spec.decode.replicas": spec.decode.replicas,
        "spec.router.replicas": spec.router.replicas,
        "spec.rollout.maxUnavailable": spec.rollout.max_unavailable,
        "spec.rollout.maxSurge": spec.rollout.max_surge,
        "spec.transfer.rdma.count": spec.transfer.rdma.count,
    }
    for path, count in counts.items():
        if count > INT32:
            yield Violation(path, count, "is more than Kubernetes counts", f"at most {INT32}")


def rollout_violations(spec: SharedKVDeploymentSpec) -> Iterator[Violation]:
    """Budgets that no rollout can keep."""
    rollout = spec.rollout
    if rollout.max_unavailable == 0 and rollout.max_surge == 0:
        reason = "with spec.rollout.maxUnavailable = 0 too, no pod may go and none may come"
        yield Violation("spec.rollout.maxSurge", 0, reason, "1 in one of the two")
    if rollout.drain_seconds > LONGEST_DRAIN_S:
        reason = "a pod that goes would hold its GPUs for more than a day"
        yield Violation(
            "spec.rollout.drainSeconds", rollout.drain_seconds, reason, f"at most {LONGEST_DRAIN_S}"
        )


def autoscaling_violations(spec: SharedKVDeploymentSpec) -> Iterator[Violation]:
    """Autoscalers that could not be made, or would do nothing."""
    for role in ("prefill", "decode"):
        told: RoleAutoscaling | None = getattr(spec.autoscaling, role)
        if told is not None:
            yield from _autoscaler(told, path=f"spec.autoscaling.{role}")


def _autoscaler(told: RoleAutoscaling, *, path: str) -> Iterator[Violation]:
    if told.min_replicas > told.max_replicas:
        reason = f"is above maxReplicas = {told.max_replicas}"
        yield Violation(f"{path}.minReplicas", told.min_replicas, reason, "at most maxReplicas")
    if told.max_replicas > INT32:
        yield Violation(
            f"{path}.maxReplicas", told.max_replicas, "is more than Kubernetes counts", f"at most {INT32}"
        )
    if told.external:
        for name, value in (("metrics", told.metrics), ("behavior", told.behavior)):
            if value:
                reason = "external = true: another autoscaler scales the role, and no HPA would hold this"
                yield Violation(f"{path}.{name}", value, reason, "remove it, or external: false")
        return
    if not told.metrics:
        reason = "is empty, and an HPA without a metric does nothing"
        yield Violation(f"{path}.metrics", [], reason, "at least one metric, or external: true")
    for number, metric in enumerate(told.metrics):
        where = f"{path}.metrics[{number}]"
        faults = list(check(dict(metric), "V2MetricSpec", path=where))
        yield from faults
        if faults:
            continue
        kind = metric["type"]
        if kind not in _METRICS:
            yield Violation(f"{where}.type", kind, "no such metric type", f"one of {', '.join(_METRICS)}")
        elif metric.get(_METRICS[kind]) is None:
            yield Violation(f"{where}.{_METRICS[kind]}", None, f"is missing (type = {kind})", "write it")
    yield from check(dict(told.behavior), "V2HorizontalPodAutoscalerBehavior", path=f"{path}.behavior")
