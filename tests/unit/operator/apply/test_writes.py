"""Actions as requests."""

from __future__ import annotations

from typing import Any

import pytest

from plait_operator.actions import Apply, Delete, SetFinalizer, SetGate, WriteStatus
from plait_operator.apply import writes
from plait_operator.apply.kinds import CHILDREN, DEPLOYMENT, kind_of
from plait_operator.apply.writes import Target
from plait_operator.names import ADMITTED_GATE, FINALIZER, SEED
from plait_operator.observed import Ref

TARGET = Target("ns", "demo", "uid-1")
F = FINALIZER


def manifest(api_version: str, kind: str) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "x", "namespace": "ns"}}


@pytest.mark.parametrize(
    ("api_version", "kind", "path"),
    [
        ("v1", "Service", "/api/v1/namespaces/ns/services/x"),
        ("apps/v1", "Deployment", "/apis/apps/v1/namespaces/ns/deployments/x"),
        ("policy/v1", "PodDisruptionBudget", "/apis/policy/v1/namespaces/ns/poddisruptionbudgets/x"),
        ("plait.dev/v1alpha1", "SharedKVRole", "/apis/plait.dev/v1alpha1/namespaces/ns/sharedkvroles/x"),
    ],
)
def test_where_children_are(api_version: str, kind: str, path: str) -> None:
    assert writes.apply(Apply(manifest(api_version, kind)), TARGET).path == path


def test_every_kind_of_a_child_can_be_written() -> None:
    assert {kind_of(k.api_version, k.kind) for k in CHILDREN} == set(CHILDREN)


def test_an_unknown_kind_says_what_to_do() -> None:
    with pytest.raises(KeyError, match=r"add it to apply\.kinds"):
        writes.apply(Apply(manifest("v1", "Node")), TARGET)


def test_apply_is_server_side_and_takes_its_fields_by_force() -> None:
    request = writes.apply(Apply(manifest("v1", "Service")), TARGET)
    assert (request.method, request.content_type) == ("PATCH", "application/apply-patch+yaml")
    assert dict(request.query) == {"fieldManager": "plait-operator", "force": "true"}
    seed = writes.apply(Apply(manifest("v1", "Service"), manager=SEED), TARGET)
    assert dict(seed.query)["fieldManager"] == SEED


def test_delete_is_of_one_object_and_in_the_background() -> None:
    request = writes.delete(Delete(Ref("v1", "Service", "x"), "u-9"), TARGET)
    assert request.method == "DELETE"
    assert isinstance(request.body, dict)
    assert request.body["preconditions"] == {"uid": "u-9"}
    assert request.body["propagationPolicy"] == "Background"


def test_delete_can_be_of_what_was_seen_alone() -> None:
    request = writes.delete(Delete(Ref("v1", "Service", "x"), "u-9", version="7"), TARGET)
    assert isinstance(request.body, dict)
    assert request.body["preconditions"] == {"uid": "u-9", "resourceVersion": "7"}


@pytest.mark.parametrize(("opened", "status"), [(True, "True"), (False, "False")])
def test_a_gate_is_one_condition_of_one_pod(opened: bool, status: str) -> None:
    request = writes.gate(SetGate("p", "u-3", open=opened), TARGET, now="2026-01-01T00:00:00Z")
    assert request.path == "/api/v1/namespaces/ns/pods/p/status"
    assert isinstance(request.body, dict)
    assert request.body["metadata"]["uid"] == "u-3"
    (condition,) = request.body["status"]["conditions"]
    assert (condition["type"], condition["status"]) == (ADMITTED_GATE, status)


@pytest.mark.parametrize(
    ("held", "present", "steps"),
    [
        ([], True, [("add", "/metadata/finalizers", [F])]),
        (["a"], True, [("test", "/metadata/finalizers", ["a"]), ("add", "/metadata/finalizers/-", F)]),
        ([F], True, None),
        ([F], False, [("test", "/metadata/finalizers/0", F), ("remove", "/metadata/finalizers/0", None)]),
        (
            ["a", F],
            False,
            [("test", "/metadata/finalizers/1", F), ("remove", "/metadata/finalizers/1", None)],
        ),
        (["a"], False, None),
        ([], False, None),
    ],
)
def test_the_finalizer_comes_and_goes_alone(held: list[str], present: bool, steps: Any) -> None:
    live = {"metadata": {"finalizers": held}}
    request = writes.finalizer(SetFinalizer(present), TARGET, live=live)
    if steps is None:
        assert request is None
        return
    assert request is not None
    assert isinstance(request.body, list)
    first, *rest = [(s["op"], s["path"], s.get("value")) for s in request.body]
    assert first == ("test", "/metadata/uid", "uid-1")
    assert rest == steps


def test_a_status_is_replaced_whole_and_only_on_its_own_object() -> None:
    request = writes.status(WriteStatus({"a": 1}), TARGET, uid="uid-1")
    assert request.path == f"{DEPLOYMENT.path('ns', 'demo')}/status"
    assert request.body == [
        {"op": "test", "path": "/metadata/uid", "value": "uid-1"},
        {"op": "add", "path": "/status", "value": {"a": 1}},
    ]


def test_the_status_of_a_role_is_on_its_child() -> None:
    request = writes.status(WriteStatus({}, role="prefill"), TARGET, uid="r-1")
    assert request.path.endswith("/sharedkvroles/demo-prefill/status")
