"""HorizontalPodAutoscalers. They scale the operator's own resources, never the workloads behind them."""

from __future__ import annotations

from plait_operator import names
from plait_operator.api.base import API_VERSION
from plait_operator.api.spec import RoleAutoscaling
from plait_operator.children.context import Context
from plait_operator.children.meta import meta
from plait_operator.children.roles import role_name
from plait_operator.observed import Manifest


def autoscalers(ctx: Context) -> list[Manifest]:
    """One for each role that asks for it and does not leave it to another autoscaler."""
    name, told = ctx.deployment.meta.name, ctx.deployment.spec.autoscaling
    rows = (
        ("prefill", told.prefill, {"kind": "SharedKVRole", "name": role_name(name)}),
        ("decode", told.decode, {"kind": "SharedKVDeployment", "name": name}),
    )
    return [
        _autoscaler(ctx, role, scale, target)
        for role, scale, target in rows
        if scale is not None and not scale.external
    ]


def _autoscaler(ctx: Context, role: str, scale: RoleAutoscaling, target: dict[str, str]) -> Manifest:
    spec: Manifest = {
        "scaleTargetRef": {"apiVersion": API_VERSION, **target},
        "minReplicas": scale.min_replicas,
        "maxReplicas": scale.max_replicas,
        "metrics": scale.metrics,
    }
    if scale.behavior:
        spec["behavior"] = scale.behavior
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": meta(ctx.deployment, names.short(ctx.deployment.meta.name, role), role=role),
        "spec": spec,
    }
