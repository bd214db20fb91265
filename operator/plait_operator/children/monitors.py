"""What Prometheus is to scrape, where its operator is there: a ServiceMonitor and a PodMonitor."""

from __future__ import annotations

from plait_operator import names
from plait_operator.children.context import Context
from plait_operator.children.meta import meta
from plait_operator.observed import Manifest

_MONITORING = "monitoring.coreos.com/v1"


def monitors(ctx: Context) -> list[Manifest]:
    """Those whose kinds the cluster serves (`ctx.apis`).

    Routers tell the figures of all engines that Plait knows. The engines' own metrics are stock SGLang's, and
    only there where its `enable_metrics` is on: nothing asks for what nobody tells.
    """
    found = []
    if "ServiceMonitor" in ctx.apis:
        found.append(_routers(ctx))
    if "PodMonitor" in ctx.apis:
        found += [_engines(ctx, role) for role in ("prefill", "decode") if _tells(ctx, role)]
    return found


def _routers(ctx: Context) -> Manifest:
    name = ctx.deployment.meta.name
    return {
        "apiVersion": _MONITORING,
        "kind": "ServiceMonitor",
        "metadata": meta(ctx.deployment, names.short(name, "router"), role="router"),
        "spec": {
            # The port's name picks the admin Service: the clients' has none of that name.
            "selector": {"matchLabels": names.selector(name, role="router")},
            "endpoints": [{"port": "admin", "path": "/metrics"}],
        },
    }


def _engines(ctx: Context, role: str) -> Manifest:
    name = ctx.deployment.meta.name
    return {
        "apiVersion": _MONITORING,
        "kind": "PodMonitor",
        "metadata": meta(ctx.deployment, names.short(name, role), role=role),
        "spec": {
            "selector": {"matchLabels": names.selector(name, role=role)},
            "podMetricsEndpoints": [{"port": "http", "path": "/metrics"}],
        },
    }


def _tells(ctx: Context, role: str) -> bool:
    spec = ctx.deployment.spec
    args = spec.engine.args | (spec.prefill.args if role == "prefill" else spec.decode.args)
    asked = {name.lstrip("-").replace("-", "_"): value for name, value in args.items()}
    return asked.get("enable_metrics") is True
