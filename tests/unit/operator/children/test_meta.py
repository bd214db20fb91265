"""Every child says whose it is."""

from __future__ import annotations

from plait_operator.api.resource import SharedKVDeployment
from plait_operator.children.meta import meta, owner_reference

DEPLOYMENT = SharedKVDeployment.of(
    {
        "metadata": {"name": "glm", "namespace": "serving", "uid": "u-1"},
        "spec": {
            "model": {"name": "GLM-5", "source": {"pvc": {"claimName": "models"}}},
            "engine": {"image": "sglang:0.5.17"},
        },
    }
)


def test_a_child_is_in_its_deployments_namespace_with_its_labels():
    told = meta(DEPLOYMENT, "glm-router", role="router")
    assert (told["name"], told["namespace"]) == ("glm-router", "serving")
    assert told["labels"] == {
        "app.kubernetes.io/name": "plait",
        "app.kubernetes.io/managed-by": "plait-operator",
        "app.kubernetes.io/instance": "glm",
        "app.kubernetes.io/component": "router",
        "plait.dev/role": "router",
    }
    assert "annotations" not in told


def test_a_child_without_a_role_has_no_role_label():
    assert "plait.dev/role" not in meta(DEPLOYMENT, "glm-model")["labels"]


def test_annotations_are_copied():
    mine = {"a": "b"}
    told = meta(DEPLOYMENT, "x", annotations=mine)
    mine["a"] = "c"
    assert told["annotations"] == {"a": "b"}


def test_the_owner_is_the_controller_and_waits_for_its_child():
    assert owner_reference(DEPLOYMENT) == {
        "apiVersion": "plait.dev/v1alpha1",
        "kind": "SharedKVDeployment",
        "name": "glm",
        "uid": "u-1",
        "controller": True,
        "blockOwnerDeletion": True,
    }
