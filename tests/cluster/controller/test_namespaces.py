"""Several namespaces to look after, of which one has gone with the rights in it."""

from __future__ import annotations

from tests.cluster.controller.conftest import SPEC
from tests.cluster.harness.api import PLAIT, Api, Manifest
from tests.cluster.harness.operators import Operators
from tests.cluster.harness.waiting import until


def binding(namespace: str, *, account: str) -> Manifest:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "operator", "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "operator", "namespace": account}],
    }


def demo(namespace: str) -> Manifest:
    return {
        "apiVersion": PLAIT,
        "kind": "SharedKVDeployment",
        "metadata": {"name": "demo", "namespace": namespace},
        "spec": SPEC,
    }


def test_a_namespace_that_is_gone_keeps_nobody_from_the_others(
    api: Api, crds: list[str], namespace: str, operators: Operators
) -> None:
    api.create(
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "operator", "namespace": namespace},
        }
    )
    # As the chart's Roles are: with a namespace, the rights in it go.
    api.create(binding(namespace, account=namespace))
    gone = f"{namespace[:50]}-gone"
    process = operators.operator(f"--watch-namespace={gone}", account=f"{namespace}:operator")
    process.launch()
    api.create(demo(namespace))
    until(
        lambda: (api.get(PLAIT, "SharedKVDeployment", "demo", namespace) or {}).get("status"),
        "the deployment is looked after",
        seconds=40,
    )
    assert process.alive()
    # The namespace is made, with the rights: its deployments come next, without a new process.
    api.create(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": gone, "labels": {"test": namespace}}}
    )
    api.create(binding(gone, account=namespace))
    api.create(demo(gone))
    try:
        until(
            lambda: (api.get(PLAIT, "SharedKVDeployment", "demo", gone) or {}).get("status"),
            "the deployment in the new namespace is looked after",
            seconds=60,
        )
        assert process.alive()
    finally:
        process.kill()
        api.patch(PLAIT, "SharedKVDeployment", "demo", gone, {"metadata": {"finalizers": None}})
        api.delete("v1", "Namespace", gone)
