"""Who may talk to whom, by NetworkPolicies: a pure function over manifests.

It says what a cluster that enforces policies would do; the test node does not enforce them. Understood is
what `networking.k8s.io/v1` has: label and namespace selectors (matchLabels, matchExpressions), ipBlock with
exceptions, ports by number, name and range, and that a direction without any policy is open.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Manifest = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class End:
    """One end of a connection. A pod has a namespace; anything else is outside, with its address alone."""

    ip: str = "10.0.0.1"
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=dict)
    """Named container ports."""

    @classmethod
    def pod(cls, template: Manifest, *, namespace: str, ip: str = "10.0.0.1") -> End:
        """The pod that a PodTemplateSpec makes."""
        containers = template["spec"]["containers"]
        return cls(
            ip=ip,
            namespace=namespace,
            labels=template["metadata"]["labels"],
            ports={
                p["name"]: p["containerPort"] for c in containers for p in c.get("ports", ()) if "name" in p
            },
        )

    def of_namespace(self) -> dict[str, str]:
        """Labels of its namespace; the API server gives every one its name."""
        return {"kubernetes.io/metadata.name": self.namespace, **self.namespace_labels}


def may_talk(
    policies: Iterable[Manifest], source: End, target: End, port: int, *, protocol: str = "TCP"
) -> bool:
    """Whether `source` may open a connection to `port` of `target`: both ends have to allow it."""
    known = [p for p in policies if p["kind"] == "NetworkPolicy"]
    return _allows(known, "Egress", source, target, target, port, protocol) and _allows(
        known, "Ingress", target, source, target, port, protocol
    )


def _allows(
    policies: list[Manifest], direction: str, mine: End, peer: End, target: End, port: int, protocol: str
) -> bool:
    concerned = [p for p in policies if _selects(p, direction, mine)]
    side, peers = ("egress", "to") if direction == "Egress" else ("ingress", "from")
    return not concerned or any(
        _is_peer(rule.get(peers), policy["metadata"]["namespace"], peer)
        and _is_port(rule.get("ports"), target, port, protocol)
        for policy in concerned
        for rule in policy["spec"].get(side, ())
    )


def _selects(policy: Manifest, direction: str, pod: End) -> bool:
    spec = policy["spec"]
    default = ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]
    return (
        bool(pod.namespace)
        and pod.namespace == policy["metadata"]["namespace"]
        and direction in spec.get("policyTypes", default)
        and matches(spec["podSelector"], pod.labels)
    )


def _is_peer(peers: list[Manifest] | None, namespace: str, end: End) -> bool:
    return not peers or any(_is(peer, namespace, end) for peer in peers)


def _is(peer: Manifest, namespace: str, end: End) -> bool:
    if "ipBlock" in peer:
        address = ipaddress.ip_address(end.ip)
        block = peer["ipBlock"]
        inside = address in ipaddress.ip_network(block["cidr"])
        return inside and not any(address in ipaddress.ip_network(net) for net in block.get("except", ()))
    if not end.namespace:
        return False
    if "namespaceSelector" in peer:
        if not matches(peer["namespaceSelector"], end.of_namespace()):
            return False
    elif end.namespace != namespace:
        return False
    return matches(peer.get("podSelector", {}), end.labels)


def _is_port(ports: list[Manifest] | None, target: End, port: int, protocol: str) -> bool:
    return not ports or any(
        told.get("protocol", "TCP") == protocol and _is_number(told, target, port) for told in ports
    )


def _is_number(told: Manifest, target: End, port: int) -> bool:
    named = told.get("port")
    if named is None:
        return True
    first = target.ports.get(named) if isinstance(named, str) else named
    return first is not None and first <= port <= told.get("endPort", first)


def matches(selector: Manifest, labels: Mapping[str, str]) -> bool:
    """Whether a LabelSelector picks `labels`; an empty one picks all."""
    return all(labels.get(k) == v for k, v in selector.get("matchLabels", {}).items()) and all(
        _holds(told, labels) for told in selector.get("matchExpressions", ())
    )


def _holds(told: Manifest, labels: Mapping[str, str]) -> bool:
    key, values = told["key"], told.get("values", ())
    match told["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
    raise ValueError(f"no operator of a label selector: {told['operator']!r}")
