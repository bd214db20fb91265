"""The control plane is a real one: it checks, refuses, controls and schedules."""

from __future__ import annotations

import pytest
from tests.cluster.harness.api import PLAIT, Api, RefusedError
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.kubectl import CommandError, Kubectl
from tests.cluster.harness.plane import NAMES
from tests.cluster.harness.waiting import until


def test_it_is_the_version_that_was_built(kubectl: Kubectl) -> None:
    assert kubectl.json("version")["serverVersion"]["gitVersion"] == "v1.34.4"


# The API server first: it waits for namespaces that go, and here there are none yet.
@pytest.mark.parametrize("name", sorted(NAMES, key=lambda name: name != "kube-apiserver"))
def test_a_component_killed_is_back_after_a_restart(
    plane: Cluster, api: Api, namespace: str, name: str
) -> None:
    """With all that was stored."""
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "kept", "namespace": namespace},
    }
    api.create(config_map)
    before = plane.components.pid(name)
    plane.plane.restart(name)
    if name == "etcd":
        until(lambda: api.raw("GET", "/readyz") == "ok", "apiserver ready with a new etcd", seconds=60)
    assert plane.components.pid(name) != before
    assert api.get("v1", "ConfigMap", "kept", namespace) is not None


def test_it_validates(kubectl: Kubectl, namespace: str) -> None:
    with pytest.raises(CommandError, match="must be greater than or equal to 0"):
        kubectl("create", "deploy", "bad", "--image=x", "--replicas=-1", "-n", namespace, "--dry-run=server")


def test_accounts_have_no_rights_unless_given(kubectl: Kubectl, api: Api, namespace: str) -> None:
    account = f"{namespace}:default"
    assert not kubectl.can_i("list", "pods", account=account, namespace=namespace)
    kubectl("create", "role", "reader", "--verb=list", "--resource=pods", "-n", namespace)
    kubectl(
        "create", "rolebinding", "reader", "--role=reader", f"--serviceaccount={account}", "-n", namespace
    )
    assert kubectl.can_i("list", "pods", account=account, namespace=namespace)
    assert not kubectl.can_i("list", "pods", account=account, namespace="*")
    assert not kubectl.can_i("list", "secrets", account=account, namespace=namespace)
    token = api.token("default", namespace)
    assert token.count(".") == 2


def test_pod_security_is_enforced(api: Api, namespace: str) -> None:
    labels = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    api.patch("v1", "Namespace", namespace, "", labels)
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "root", "namespace": namespace},
        "spec": {"containers": [{"name": "c", "image": "x", "securityContext": {"privileged": True}}]},
    }
    with pytest.raises(RefusedError, match="violates PodSecurity"):
        api.create(pod)


def test_crds_are_served(api: Api, crds: list[str], namespace: str) -> None:
    assert "sharedkvdeployments.plait.dev" in crds
    assert api.list(PLAIT, "SharedKVDeployment", namespace) == []


def test_a_namespace_goes_with_what_is_in_it(api: Api, kubectl: Kubectl) -> None:
    kubectl("create", "namespace", "passing")
    kubectl("create", "configmap", "c", "-n", "passing")
    api.delete("v1", "Namespace", "passing")
    api.until_gone("v1", "Namespace", "passing")


def test_webhook_on_this_machine_is_asked(plane: Cluster, api: Api, namespace: str) -> None:
    """One that does not answer refuses, by its policy: so it was asked."""
    hook = {
        "name": "nobody.plait.dev",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "clientConfig": {"url": "https://127.0.0.1:1/validate"},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
        ],
    }
    configuration = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "smoke"},
        "webhooks": [hook],
    }
    api.apply(configuration)
    try:
        config_map = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "c", "namespace": namespace},
        }

        def refused() -> bool:
            with pytest.raises(RefusedError) as told:
                api.create(config_map, dry_run=True)
            return "nobody.plait.dev" in told.value.message

        until(refused, "the webhook is asked", seconds=20)
    finally:
        api.delete("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "smoke")


def test_history_can_be_forgotten(plane: Cluster, api: Api, namespace: str) -> None:
    """A watch from before the compaction is told 410: what tests of watchers lean on."""
    listed = api.raw("GET", f"/api/v1/namespaces/{namespace}/configmaps")["metadata"]["resourceVersion"]
    for number in range(3):
        meta = {"name": f"c{number}", "namespace": namespace}
        api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta})
    plane.plane.compact()
    # The API server answers recent watches from its own memory, which a restart empties.
    plane.plane.restart("kube-apiserver")
    kind, status = next(api.watch("v1", "ConfigMap", namespace, seconds=20, since=listed))
    assert (kind, status["code"]) == ("ERROR", 410)
