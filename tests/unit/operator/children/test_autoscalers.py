"""Autoscalers scale our resources, and own the field that they scale."""

from __future__ import annotations

from tests.unit.operator.children.given import context

from plait_operator.children.autoscalers import autoscalers
from plait_operator.children.roles import prefill_role, role_name

METRICS = [{"type": "Pods", "pods": {"metric": {"name": "queued"}, "target": {"type": "AverageValue"}}}]
BEHAVIOR = {"scaleDown": {"stabilizationWindowSeconds": 600}}


def test_each_role_has_its_target():
    scaling = {
        "prefill": {"minReplicas": 2, "maxReplicas": 4, "metrics": METRICS},
        "decode": {"maxReplicas": 9, "metrics": METRICS, "behavior": BEHAVIOR},
    }
    prefill, decode = autoscalers(context(autoscaling=scaling))
    assert prefill["spec"] == {
        "scaleTargetRef": {
            "apiVersion": "plait.dev/v1alpha1",
            "kind": "SharedKVRole",
            "name": role_name("glm"),
        },
        "minReplicas": 2,
        "maxReplicas": 4,
        "metrics": METRICS,
    }
    assert decode["spec"]["scaleTargetRef"] == {
        "apiVersion": "plait.dev/v1alpha1",
        "kind": "SharedKVDeployment",
        "name": "glm",
    }
    assert decode["spec"]["behavior"] == BEHAVIOR


def test_none_is_made_for_another_autoscaler_or_for_nobody():
    external = {
        "decode": {"external": True, "maxReplicas": 3},
        "prefill": {"external": True, "maxReplicas": 2},
    }
    assert autoscalers(context(autoscaling=external)) == []
    assert autoscalers(context()) == []


def test_the_roles_replicas_are_left_to_whoever_scales_it():
    assert prefill_role(context(prefill={"replicas": 3}))["spec"] == {"replicas": 3}
    for scale in ({"external": True}, {"metrics": METRICS}):
        told = prefill_role(context(prefill={"replicas": 3}, autoscaling={"prefill": scale}))
        assert "replicas" not in told["spec"]
    # Decode's autoscaler is no business of prefill.
    other = prefill_role(context(prefill={"replicas": 3}, autoscaling={"decode": {"external": True}}))
    assert other["spec"] == {"replicas": 3}
