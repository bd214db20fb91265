"""How many pods a drain of nodes may take."""

from __future__ import annotations

import pytest
from tests.unit.operator.children.given import context

from plait_operator.children.budgets import budgets, may_be_evicted


@pytest.mark.parametrize(
    ("replicas", "max_unavailable", "evicted"),
    [
        (0, 0, 1),
        (1, 0, 1),  # a lone pod: else its node could never be drained
        (1, 3, 1),
        (2, 0, 1),
        (2, 1, 1),
        (2, 5, 1),  # one of two stays
        (3, 2, 2),
        (8, 0, 1),
        (8, 3, 3),
        (8, 8, 7),
    ],
)
def test_at_least_one_never_all(replicas: int, max_unavailable: int, evicted: int):
    assert may_be_evicted(replicas=replicas, max_unavailable=max_unavailable) == evicted


def of(**spec: object) -> dict[str, int]:
    return {
        b["metadata"]["labels"]["plait.dev/role"]: b["spec"]["maxUnavailable"]
        for b in budgets(context(**spec))
    }


def test_engines_follow_the_rollouts_budget_and_routers_go_one_by_one():
    told = of(
        prefill={"replicas": 4}, decode={"replicas": 9}, router={"replicas": 5}, rollout={"maxUnavailable": 2}
    )
    assert told == {"prefill": 2, "decode": 2, "router": 1}


def test_an_autoscaler_may_go_down_to_its_least():
    scaled = {"decode": {"minReplicas": 2, "maxReplicas": 9, "external": True}}
    assert of(decode={"replicas": 9}, rollout={"maxUnavailable": 4}, autoscaling=scaled)["decode"] == 1


def test_broken_pods_never_hold_a_node():
    assert {b["spec"]["unhealthyPodEvictionPolicy"] for b in budgets(context())} == {"AlwaysAllow"}
