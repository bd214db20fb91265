"""NetworkPolicies: who may talk to whom. What is not said here is denied, both ways.

| from | to | port |
|---|---|---|
| anyone | router | http |
| the operator's pods, the monitoring namespace | router | admin |
| router | prefill, decode | http |
| monitoring namespace | prefill, decode | http (its /metrics; policies see ports, not paths) |
| prefill, decode | each other | every port from 1024 up but http |
| ranks of a group on several nodes | each other | every port |
| router | anywhere, where engines are in the node's network | http |
| router, engines, inspect | DNS | 53 |
| router | API server | 443, 6443, or what the release says |
| engines, inspect | the model's hub, where the source is one | 443 |

Policies only add up: another one in the namespace can open more (a mirror of the hub on another port). RDMA
does not pass through them, nor does anything of pods in the node's network.
"""

from __future__ import annotations

from typing import Final

from plait_operator import names
from plait_operator.children import ports
from plait_operator.children.context import Context
from plait_operator.children.inspect import INSPECT
from plait_operator.children.meta import meta
from plait_operator.observed import Manifest

OPERATOR_LABELS: Final = {names.NAME: "plait", names.COMPONENT: "operator"}
"""Labels of the operator's own pods, as the chart gives them."""

_NAMESPACE: Final = "kubernetes.io/metadata.name"
# Node-local DNS caches answer on this address, in the node's network.
_DNS_ON_NODE: Final = "169.254.20.10/32"
_ANYWHERE: Final = ("0.0.0.0/0", "::/0")


def policies(ctx: Context) -> list[Manifest]:
    """One that denies, for every pod of the deployment, and one for each role that allows. [] if unwanted."""
    spec = ctx.deployment.spec
    if not spec.pods.network_policies:
        return []
    hub = [_to_anywhere(443)] if spec.model.source.hub is not None else []
    group = spec.prefill.nodes_per_group > 1
    monitoring = _namespace(ctx.release.monitoring_namespace)
    operator = _namespace(ctx.release.namespace) | {"podSelector": {"matchLabels": OPERATOR_LABELS}}
    prefill, decode, router = (_pods(ctx, role) for role in ("prefill", "decode", "router"))
    from_clients = {"from": [router, monitoring], "ports": [_tcp(ports.ENGINE)]}
    # Pods in the node's network have its addresses. No selector of pods stands for those and, to some network
    # plugins, no range of addresses either: only a rule without targets reaches them.
    at_nodes = spec.pods.host_network
    to_engines = {"ports": [_tcp(ports.ENGINE)], **({} if at_nodes else {"to": [prefill, decode]})}
    return [
        _policy(ctx, "", ingress=[], egress=[]),
        _policy(
            ctx,
            "prefill",
            ingress=[from_clients, {"from": [decode], "ports": _transfer()}]
            + ([{"from": [prefill]}] if group else []),
            egress=[_dns(), {"to": [decode], "ports": _transfer()}, *hub]
            + ([{"to": [prefill]}] if group else []),
        ),
        _policy(
            ctx,
            "decode",
            ingress=[from_clients, {"from": [prefill], "ports": _transfer()}],
            egress=[_dns(), {"to": [prefill], "ports": _transfer()}, *hub],
        ),
        _policy(
            ctx,
            "router",
            ingress=[
                {"ports": [_tcp(ports.ROUTER)]},
                {"from": [operator, monitoring], "ports": [_tcp(ports.ADMIN)]},
            ],
            egress=[
                _dns(),
                to_engines,
                {
                    "to": [{"ipBlock": {"cidr": cidr}} for cidr in ctx.release.api_server_cidrs],
                    "ports": [_tcp(port) for port in ctx.release.api_server_ports],
                },
            ],
        ),
        _policy(ctx, INSPECT, ingress=[], egress=[_dns(), *hub]),
    ]


def _policy(ctx: Context, role: str, *, ingress: list[Manifest], egress: list[Manifest]) -> Manifest:
    name = ctx.deployment.meta.name
    every = {names.INSTANCE: name, names.MANAGED_BY: names.MANAGER}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": meta(ctx.deployment, names.short(name, role or "deny"), role=role),
        "spec": {
            "podSelector": {"matchLabels": names.selector(name, role=role) if role else every},
            "policyTypes": ["Ingress", "Egress"],
            # An empty list allows nothing, as no list does; the API server keeps neither.
            **({"ingress": ingress} if ingress else {}),
            **({"egress": egress} if egress else {}),
        },
    }


def _pods(ctx: Context, role: str) -> Manifest:
    return {"podSelector": {"matchLabels": names.selector(ctx.deployment.meta.name, role=role)}}


def _namespace(name: str) -> Manifest:
    return {"namespaceSelector": {"matchLabels": {_NAMESPACE: name}}}


def _tcp(port: int, end: int | None = None) -> Manifest:
    told: Manifest = {"protocol": "TCP", "port": port}
    return told if end is None else {**told, "endPort": end}


def _transfer() -> list[Manifest]:
    """Bootstrap, and the ports that the transfer engine finds free; never the engine's API."""
    return [_tcp(1024, ports.ENGINE - 1), _tcp(ports.ENGINE + 1, 65535)]


def _dns() -> Manifest:
    return {
        "to": [_namespace("kube-system"), {"ipBlock": {"cidr": _DNS_ON_NODE}}],
        "ports": [{"protocol": "UDP", "port": 53}, _tcp(53)],
    }


def _to_anywhere(port: int) -> Manifest:
    return {"to": [{"ipBlock": {"cidr": cidr}} for cidr in _ANYWHERE], "ports": [_tcp(port)]}
