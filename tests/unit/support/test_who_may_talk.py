"""The reading of NetworkPolicies that other tests rely on, on policies written by hand."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.who_may_talk import End, matches, may_talk

A = End(namespace="one", labels={"app": "a"}, ip="10.0.0.1")
B = End(namespace="one", labels={"app": "b"}, ip="10.0.0.2", ports={"http": 8080})
FAR = End(namespace="two", labels={"app": "a"}, ip="10.1.0.1", namespace_labels={"team": "x"})
WORLD = End(ip="203.0.113.7")
B_ONLY = {"matchLabels": {"app": "b"}}
TWO = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "two"}}}


def policy(selector: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "kind": "NetworkPolicy",
        "metadata": {"name": "p", "namespace": "one"},
        "spec": {"podSelector": selector or {}, **spec},
    }


DENY = policy(policyTypes=["Ingress", "Egress"])


@pytest.mark.parametrize(
    ("policies", "source", "target", "port", "allowed"),
    [
        # Nothing said: open. A policy of one direction leaves the other open.
        ([], A, B, 80, True),
        ([policy(B_ONLY, policyTypes=["Ingress"])], A, B, 80, False),
        ([policy(B_ONLY, policyTypes=["Ingress"])], B, A, 80, True),
        ([policy(B_ONLY, policyTypes=["Egress"])], A, B, 80, True),
        ([policy(B_ONLY, policyTypes=["Egress"])], B, A, 80, False),
        # Policies of a namespace are about its own pods only.
        ([DENY], FAR, WORLD, 80, True),
        ([DENY], FAR, A, 80, False),
        ([DENY], A, FAR, 80, False),
        # An empty rule allows all; no types means ingress, and egress where it stands.
        ([policy(ingress=[{}])], WORLD, A, 80, True),
        ([policy(B_ONLY)], A, B, 80, False),
        ([policy(B_ONLY)], B, A, 80, True),
        ([policy(B_ONLY, egress=[])], B, A, 80, True),
        ([policy(B_ONLY, egress=[{"ports": [{"port": 443}]}])], B, A, 80, False),
        # They add up.
        (
            [DENY, policy(B_ONLY, ingress=[{}]), policy({"matchLabels": {"app": "a"}}, egress=[{}])],
            A,
            B,
            80,
            True,
        ),
        # Both ends have to allow it.
        ([DENY, policy(B_ONLY, ingress=[{}])], A, B, 80, False),
        # Peers: pods of the same namespace, of another, both, or addresses.
        (
            [policy(B_ONLY, ingress=[{"from": [{"podSelector": {"matchLabels": {"app": "a"}}}]}])],
            A,
            B,
            1,
            True,
        ),
        (
            [policy(B_ONLY, ingress=[{"from": [{"podSelector": {"matchLabels": {"app": "a"}}}]}])],
            FAR,
            B,
            1,
            False,
        ),
        ([policy(B_ONLY, ingress=[{"from": [TWO]}])], FAR, B, 1, True),
        ([policy(B_ONLY, ingress=[{"from": [TWO]}])], A, B, 1, False),
        ([policy(B_ONLY, ingress=[{"from": [{**TWO, "podSelector": B_ONLY}]}])], FAR, B, 1, False),
        ([policy(B_ONLY, ingress=[{"from": [TWO, {"podSelector": B_ONLY}]}])], FAR, B, 1, True),
        ([policy(B_ONLY, ingress=[{"from": [{"namespaceSelector": {}}]}])], WORLD, B, 1, False),
        ([policy(B_ONLY, ingress=[{"from": [{"ipBlock": {"cidr": "203.0.113.0/24"}}]}])], WORLD, B, 1, True),
        (
            [
                policy(
                    B_ONLY,
                    ingress=[{"from": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["203.0.113.0/24"]}}]}],
                )
            ],
            WORLD,
            B,
            1,
            False,
        ),
        ([policy(B_ONLY, ingress=[{"from": [{"ipBlock": {"cidr": "::/0"}}]}])], WORLD, B, 1, False),
        # Ports: by number, name and range.
        ([policy(B_ONLY, ingress=[{"ports": [{"port": 80}]}])], A, B, 80, True),
        ([policy(B_ONLY, ingress=[{"ports": [{"port": 80}]}])], A, B, 81, False),
        ([policy(B_ONLY, ingress=[{"ports": [{"port": 80, "protocol": "UDP"}]}])], A, B, 80, False),
        ([policy(B_ONLY, ingress=[{"ports": [{"port": "http"}]}])], A, B, 8080, True),
        ([policy(B_ONLY, ingress=[{"ports": [{"port": "http"}]}])], A, B, 80, False),
        ([policy(B_ONLY, ingress=[{"ports": [{"port": "other"}]}])], A, B, 8080, False),
        ([policy(B_ONLY, ingress=[{"ports": [{"port": 80, "endPort": 90}]}])], A, B, 90, True),
        ([policy(B_ONLY, ingress=[{"ports": [{"port": 80, "endPort": 90}]}])], A, B, 91, False),
        ([policy(B_ONLY, ingress=[{"ports": [{"protocol": "TCP"}]}])], A, B, 5, True),
    ],
)
def test_rows(policies: list[dict[str, Any]], source: End, target: End, port: int, allowed: bool):
    assert may_talk(policies, source, target, port) is allowed


@pytest.mark.parametrize(
    ("expression", "labels", "picked"),
    [
        ({"operator": "In", "values": ["a", "b"]}, {"k": "a"}, True),
        ({"operator": "In", "values": ["a"]}, {}, False),
        ({"operator": "NotIn", "values": ["a"]}, {"k": "a"}, False),
        ({"operator": "NotIn", "values": ["a"]}, {}, True),
        ({"operator": "Exists"}, {"k": ""}, True),
        ({"operator": "Exists"}, {}, False),
        ({"operator": "DoesNotExist"}, {}, True),
        ({"operator": "DoesNotExist"}, {"k": "a"}, False),
    ],
)
def test_expressions(expression: dict[str, Any], labels: dict[str, str], picked: bool):
    assert matches({"matchExpressions": [{"key": "k", **expression}]}, labels) is picked


def test_an_unknown_operator_is_no_silent_no():
    with pytest.raises(ValueError, match="Gt"):
        matches({"matchExpressions": [{"key": "k", "operator": "Gt"}]}, {})
