"""What the API server makes of the definitions: defaults, columns, scale and status."""

from __future__ import annotations

import pytest
from tests.cluster.crd.rows import manifest
from tests.cluster.harness.api import Api
from tests.cluster.harness.kubectl import Kubectl

from plait_operator.api.base import API_VERSION
from plait_operator.api.spec import SharedKVDeploymentSpec
from plait_operator.api.status import (
    Capacity,
    Condition,
    Hashes,
    RoleStatus,
    SharedKVDeploymentStatus,
    SharedKVRoleStatus,
)
from plait_operator.status import status_json

pytestmark = pytest.mark.usefixtures("crds")

STATUS = SharedKVDeploymentStatus(
    observed_generation=1,
    conditions=[
        Condition(
            type=kind,
            status=status,
            reason=reason,
            message="why",
            observed_generation=1,
            last_transition_time="2026-01-01T00:00:00Z",
        )
        for kind, status, reason in (
            ("Available", "False", "NoDecode"),
            ("Progressing", "True", "Starting"),
            ("Degraded", "False", "Healthy"),
        )
    ],
    capacity=Capacity(tokens_shared=3146752, max_context=202752),
    contract=Hashes(wire="ab" * 32, group="cd" * 32),
    prefill=RoleStatus(replicas=1, ready=1, pods="1/1"),
    decode=RoleStatus(replicas=2, ready=0, pods="0/2"),
    router=RoleStatus(replicas=2, ready=2, pods="2/2"),
    decode_selector="plait.dev/role=decode",
    endpoint="http://demo.ns.svc",
)


def test_defaults_are_written_down(api: Api, namespace: str) -> None:
    stored = api.create(manifest({}, namespace=namespace))
    told = SharedKVDeploymentSpec.model_validate(stored["spec"])
    assert told == SharedKVDeploymentSpec.model_validate(manifest({})["spec"])
    assert stored["spec"]["prefill"] == {
        "replicas": 1,
        "contextParallel": 8,
        "nodesPerGroup": 1,
        "chunk": 8192,
    }


def test_columns(api: Api, kubectl: Kubectl, namespace: str) -> None:
    body = api.create(manifest({}, namespace=namespace))
    api.replace({**body, "status": status_json(STATUS)}, subresource="status")
    head, row = kubectl("get", "skv", "-n", namespace).splitlines()
    assert head.split() == [
        "NAME", "MODEL", "PREFILL", "DECODE", "ROUTER", "CONTEXT", "TOKENS", "AVAILABLE", "REASON", "AGE",
    ]  # fmt: skip
    assert row.split()[:-1] == [
        "demo",
        "glm-5",
        "1/1",
        "0/2",
        "2/2",
        "202752",
        "3146752",
        "False",
        "NoDecode",
    ]
    wide = kubectl("get", "skv", "-n", namespace, "-o", "wide").splitlines()[1].split()
    assert wide[-4:] == ["Starting", "Healthy", "ab" * 32, "http://demo.ns.svc"]


def test_a_status_is_stored_as_it_was_told(api: Api, namespace: str) -> None:
    body = api.create(manifest({}, namespace=namespace))
    stored = api.replace({**body, "status": status_json(STATUS)}, subresource="status")
    assert stored["status"] == status_json(STATUS)
    assert SharedKVDeploymentStatus.model_validate(stored["status"]) == STATUS
    assert stored["metadata"]["generation"] == body["metadata"]["generation"]


def test_scale_is_decode(api: Api, kubectl: Kubectl, namespace: str) -> None:
    body = api.create(manifest({}, namespace=namespace))
    api.replace({**body, "status": status_json(STATUS)}, subresource="status")
    kubectl("scale", "skv/demo", "--replicas=5", "-n", namespace)
    after = api.get(API_VERSION, "SharedKVDeployment", "demo", namespace)
    assert after is not None
    assert (after["spec"]["decode"]["replicas"], after["spec"]["prefill"]["replicas"]) == (5, 1)
    scale = kubectl.json("get", "skv/demo", "-n", namespace, "--subresource=scale")
    assert scale["status"] == {"replicas": 2, "selector": "plait.dev/role=decode"}


def test_a_role_scales_by_itself(api: Api, kubectl: Kubectl, namespace: str) -> None:
    role = {
        "apiVersion": API_VERSION,
        "kind": "SharedKVRole",
        "metadata": {"name": "demo-prefill", "namespace": namespace},
        "spec": {},
    }
    body = api.create(role)
    assert body["spec"] == {"replicas": 1}
    status = status_json(SharedKVRoleStatus(replicas=1, ready=1, selector="plait.dev/role=prefill"))
    api.replace({**body, "status": status}, subresource="status")
    kubectl("scale", "skvr/demo-prefill", "--replicas=3", "-n", namespace)
    row = kubectl("get", "skvr", "-n", namespace).splitlines()[1].split()
    assert row[:4] == ["demo-prefill", "3", "1", "1"]


def test_both_kinds_are_listed_together(api: Api, kubectl: Kubectl, namespace: str) -> None:
    api.create(manifest({}, namespace=namespace))
    assert "sharedkvdeployment.plait.dev/demo" in kubectl("get", "plait", "-n", namespace)


def test_fields_are_explained(kubectl: Kubectl) -> None:
    told = kubectl("explain", "skv.spec.prefill.contextParallel")
    assert "Ranks (GPUs) of one group" in told
