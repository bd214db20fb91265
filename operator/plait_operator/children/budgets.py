"""PodDisruptionBudgets: how many pods of a role a drain of nodes may take at once."""

from __future__ import annotations

from plait_operator import names
from plait_operator.children.context import Context
from plait_operator.children.meta import meta
from plait_operator.observed import Manifest


def may_be_evicted(*, replicas: int, max_unavailable: int) -> int:
    """Pods of a role that evictions may take at once.

    At least one, also where a rollout may take none: with 0 no node of the role could ever be drained. Never
    all of them where there are two or more.
    """
    return min(max(max_unavailable, 1), max(replicas - 1, 1))


def budgets(ctx: Context) -> list[Manifest]:
    """One for each role, over the pods of all its revisions."""
    spec = ctx.deployment.spec
    scales = spec.autoscaling
    rows = (
        ("prefill", scales.prefill.min_replicas if scales.prefill else spec.prefill.replicas),
        ("decode", scales.decode.min_replicas if scales.decode else spec.decode.replicas),
        ("router", spec.router.replicas),
    )
    return [
        _budget(
            ctx,
            role,
            # Routers have no budget of their own in the spec: one at a time.
            may_be_evicted(
                replicas=replicas, max_unavailable=0 if role == "router" else spec.rollout.max_unavailable
            ),
        )
        for role, replicas in rows
    ]


def _budget(ctx: Context, role: str, unavailable: int) -> Manifest:
    deployment = ctx.deployment
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": meta(deployment, names.short(deployment.meta.name, role), role=role),
        "spec": {
            "maxUnavailable": unavailable,
            "selector": {"matchLabels": names.selector(deployment.meta.name, role=role)},
            # A pod that never became ready must not keep its node from being drained.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
