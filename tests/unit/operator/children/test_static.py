"""All children together: whose they are, what they are called, and that nothing moves without a reason."""

from __future__ import annotations

import json

import pytest
from tests.unit.operator.children.given import context

from plait_operator.children.static import static
from plait_operator.observed import Ref

LONG = "a" * 63
EVERYTHING = {
    "apis": ("ServiceMonitor", "PodMonitor"),
    "engine": {"image": "sglang:0.5.17", "args": {"enable_metrics": True}},
    "autoscaling": {
        "prefill": {"maxReplicas": 4, "metrics": [{"type": "Resource"}]},
        "decode": {"maxReplicas": 8, "metrics": [{"type": "Resource"}]},
    },
}


def test_what_there_is_and_in_which_order():
    told = [(m["kind"], m["metadata"]["name"]) for m in static(context(**EVERYTHING))]
    assert told == [
        ("ServiceAccount", "glm-router"),
        ("Role", "glm-router"),
        ("RoleBinding", "glm-router"),
        ("NetworkPolicy", "glm-deny"),
        ("NetworkPolicy", "glm-prefill"),
        ("NetworkPolicy", "glm-decode"),
        ("NetworkPolicy", "glm-router"),
        ("NetworkPolicy", "glm-inspect"),
        ("Service", "glm"),
        ("Service", "glm-router-admin"),
        ("Service", "glm-prefill"),
        ("PodDisruptionBudget", "glm-prefill"),
        ("PodDisruptionBudget", "glm-decode"),
        ("PodDisruptionBudget", "glm-router"),
        ("SharedKVRole", "glm-prefill"),
        ("HorizontalPodAutoscaler", "glm-prefill"),
        ("HorizontalPodAutoscaler", "glm-decode"),
        ("ServiceMonitor", "glm-router"),
        ("PodMonitor", "glm-prefill"),
        ("PodMonitor", "glm-decode"),
        ("Deployment", "glm-router"),
    ]


@pytest.mark.parametrize("name", ["glm", LONG, "a-" * 31 + "b"])
def test_every_child_is_owned_labelled_and_has_a_name_of_its_own_that_fits(name: str):
    children = static(context(name=name, **EVERYTHING))
    for child in children:
        metadata = child["metadata"]
        assert metadata["namespace"] == "serving"
        assert metadata["ownerReferences"][0]["uid"] == "u-1"
        assert metadata["labels"]["app.kubernetes.io/instance"] == name
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "plait-operator"
        assert len(metadata["name"]) <= 63
        assert not metadata["name"].endswith("-")
    assert len({Ref.of(child) for child in children}) == len(children)


def test_the_same_spec_gives_the_same_text():
    first, second = (json.dumps(static(context(**EVERYTHING))) for _ in range(2))
    assert first == second


def test_manifests_share_no_parts_that_a_caller_could_change():
    ctx = context(router={"resources": {"limits": {"memory": "1Gi"}}})
    before = json.dumps(static(ctx))
    for child in static(ctx):
        child["metadata"]["labels"]["x"] = "y"
    assert json.dumps(static(ctx)) == before
