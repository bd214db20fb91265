"""Whole plans on a real API server: what it stores is what was asked for, so a second look writes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cluster.harness.api import Api, Manifest
from tests.cluster.manifests.cases import CASES, DEEPSEEK

from plait_operator.actions import Apply, Delete, SetFinalizer, WriteStatus
from plait_operator.api.base import API_VERSION
from plait_operator.api.resource import SharedKVDeployment
from plait_operator.apply.kinds import CHILDREN
from plait_operator.children.context import Release
from plait_operator.observed import Observed, Ref
from plait_operator.plan.plan import make_plan

pytestmark = pytest.mark.usefixtures("crds", "lws")
KIND = "SharedKVDeployment"
RELEASE = Release(experimental=frozenset({"multi-host-groups"}), api_server_cidrs=("10.0.0.1/32",))
SMALL: Manifest = {"name": "m", "source": {"pvc": {"claimName": "models"}}, "family": "deepseek-v3.2"}
"""A model that fits eight GPUs."""
GLM: Manifest = {"model": SMALL, "engine": {"image": "lmsysorg/sglang:v0.5.17"}}
METRIC: Manifest = {
    "type": "Pods",
    "pods": {"metric": {"name": "queue"}, "target": {"type": "AverageValue", "averageValue": "1500m"}},
}
OF_PLANS: dict[str, Manifest] = {
    "quantities written in other words": {
        **GLM,
        "decode": {"resources": {"requests": {"cpu": "1000m"}, "limits": {"memory": "1024Mi"}}},
        "router": {"resources": {"requests": {"cpu": 0.5, "memory": "536870912"}}},
    },
    "autoscaled by HPAs": {
        **GLM,
        "autoscaling": {
            role: {"minReplicas": 1, "maxReplicas": 4, "metrics": [METRIC]} for role in ("prefill", "decode")
        },
    },
    "keys, certificate, load balancer": {
        **DEEPSEEK,
        "router": {
            "auth": {"secretRef": {"name": "keys"}},
            "tls": {"secretRef": {"name": "tls"}},
            "service": {"type": "LoadBalancer", "port": 443, "annotations": {"a": "b"}},
            "podTemplate": {"spec": {"tolerations": [{"operator": "Exists"}]}},
        },
    },
    "a model that must be read": {**GLM, "model": {"name": "m", "source": {"pvc": {"claimName": "m"}}}},
    "at zero, with empty values": {
        **GLM,
        "engine": {"image": "sglang:0.5.17", "env": [{"name": "EMPTY", "value": ""}]},
        "prefill": {"replicas": 0},
        "decode": {"replicas": 0},
        "router": {"replicas": 0},
    },
}  # fmt: skip


SPECS = OF_PLANS | {
    name: spec if spec is DEEPSEEK else {**spec, "model": SMALL | {"source": spec["model"]["source"]}}
    for name, spec in CASES.items()
}


def observed(api: Api, namespace: str, body: Manifest) -> Observed:
    """All that the deployment owns, asked for at this moment."""
    children: dict[Ref, Any] = {}
    for kind in CHILDREN:
        if kind.optional and kind.kind != "LeaderWorkerSet":
            continue
        for live in api.raw("GET", kind.path(namespace))["items"]:
            owners = live["metadata"].get("ownerReferences") or []
            if any(owner["uid"] == body["metadata"]["uid"] for owner in owners):
                told = {**live, "apiVersion": kind.api_version, "kind": kind.kind}
                children[Ref.of(told)] = told
    return Observed(children=children, apis=frozenset({"LeaderWorkerSet"}), now="2026-01-01T00:00:00Z")


def look(api: Api, namespace: str, name: str = "glm") -> tuple[Any, ...]:
    """The actions of a plan made now."""
    body = api.get(API_VERSION, KIND, name, namespace)
    assert body is not None
    return make_plan(SharedKVDeployment.of(body), observed(api, namespace, body), RELEASE).actions


def carry_out(api: Api, namespace: str, actions: tuple[Any, ...], name: str = "glm") -> None:
    for action in actions:
        match action:
            case Apply(manifest=manifest, manager=manager):
                api.apply(manifest, manager=manager)
            case Delete(ref=ref):
                api.delete(ref.api_version, ref.kind, ref.name, namespace)
            case WriteStatus(status=status, role=role):
                kind, target = (KIND, name) if not role else ("SharedKVRole", f"{name}-{role}")
                patch = [{"op": "add", "path": "/status", "value": status}]
                api.patch(API_VERSION, kind, target, namespace, patch, subresource="status")
            case SetFinalizer():
                pass  # So that the namespace can go.


def named(namespace: str) -> Manifest:
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "glm", "namespace": namespace}}


def writes(actions: tuple[Any, ...]) -> list[Any]:
    return [one for one in actions if isinstance(one, Apply | Delete)]


@pytest.mark.parametrize("spec", [pytest.param(spec, id=name) for name, spec in SPECS.items()])
def test_a_second_look_writes_nothing(api: Api, namespace: str, spec: Manifest) -> None:
    api.create({**named(namespace), "spec": spec})
    first = look(api, namespace)
    assert len(writes(first)) > 10, [one for one in first if isinstance(one, WriteStatus)]
    carry_out(api, namespace, first)
    assert writes(look(api, namespace)) == []


def test_a_change_from_one_spec_to_another_and_back(api: Api, namespace: str) -> None:
    """What a spec no longer asks for is taken off again: fields by server-side apply, objects by deletes."""
    rich = {**OF_PLANS["keys, certificate, load balancer"], **OF_PLANS["autoscaled by HPAs"]}
    body = named(namespace)
    api.create({**body, "spec": GLM})
    carry_out(api, namespace, look(api, namespace))
    kinds = {one.manifest["kind"] for one in look(api, namespace) if isinstance(one, Apply)}
    assert kinds == set()
    for spec in (rich, GLM):
        api.replace({**body, "metadata": live(api, namespace)["metadata"], "spec": spec})
        for _ in range(3):
            carry_out(api, namespace, look(api, namespace))
        assert writes(look(api, namespace)) == []
    assert api.list("autoscaling/v2", "HorizontalPodAutoscaler", namespace) == []
    service = api.get("v1", "Service", "glm", namespace)
    assert service is not None
    assert service["spec"]["type"] == "ClusterIP"
    assert "a" not in service["metadata"]["annotations"]


def test_a_status_is_stored_as_it_was_written(api: Api, namespace: str) -> None:
    """Otherwise each look would write it again."""
    body = named(namespace)
    api.create({**body, "spec": {**GLM, "prefill": {"replicas": 0}, "decode": {"replicas": 0}}})
    carry_out(api, namespace, look(api, namespace))
    for _ in range(2):
        carry_out(api, namespace, look(api, namespace))
    role = api.get(API_VERSION, "SharedKVRole", "glm-prefill", namespace)
    assert role is not None
    assert role["status"]["replicas"] == 0
    assert [one for one in look(api, namespace) if isinstance(one, WriteStatus)] == []


def live(api: Api, namespace: str) -> Manifest:
    found = api.get(API_VERSION, KIND, "glm", namespace)
    assert found is not None
    return found
