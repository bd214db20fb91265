"""Children that people and other programs touch; names; neighbours."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.cluster.faults.stack import FLAGS, Json, Stack, behaves, quiet, spec, until_quiet, written
from tests.cluster.harness.api import PLAIT, Api
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.operators import Operators
from tests.cluster.harness.processes import Process
from tests.cluster.harness.waiting import until

from plait_operator.names import REVISION

Make = Callable[..., Stack]


def test_nothing_is_written_while_nothing_changes(operator: Process, stack: Make) -> None:
    stack(spec())
    until_quiet(operator)
    assert not quiet(operator, 12)


@pytest.mark.full
def test_a_resync_writes_nothing(operators: Operators, stack: Make) -> None:
    operator = operators.operator(*FLAGS, "--resync-seconds=1")
    operator.start()
    stack(spec())
    until_quiet(operator)
    assert not quiet(operator, 6)


@pytest.mark.full
def test_a_restart_writes_nothing(operator: Process, stack: Make) -> None:
    stack(spec())
    until_quiet(operator)
    operator.terminate()
    operator.start()
    operator.await_log("working with")
    assert not quiet(operator, 4)
    assert not written(operator)


@pytest.mark.parametrize(
    ("version", "kind", "name", "edit"),
    [
        ("v1", "Service", "demo-prefill", {"spec": {"publishNotReadyAddresses": False}}),
        (
            "policy/v1",
            "PodDisruptionBudget",
            "demo-decode",
            {"spec": {"maxUnavailable": 3, "minAvailable": None}},
        ),
        pytest.param(
            "v1",
            "ServiceAccount",
            "demo-router",
            {"automountServiceAccountToken": None},
            marks=pytest.mark.full,
        ),
        pytest.param(
            "rbac.authorization.k8s.io/v1", "Role", "demo-router", {"rules": []}, marks=pytest.mark.full
        ),
    ],
)
def test_a_hand_edited_child_is_put_right(
    operator: Process, stack: Make, api: Api, namespace: str, version: str, kind: str, name: str, edit: Json
) -> None:
    stack(spec())
    until_quiet(operator)
    before = api.get(version, kind, name, namespace)
    assert before is not None, f"{kind} {name} is not there"
    start = written(operator)
    edited = api.patch(version, kind, name, namespace, edit)
    if edited["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]:
        pytest.fail("the edit changes nothing")

    def right() -> bool:
        now = api.get(version, kind, name, namespace)
        return now is not None and _wanted(now) == _wanted(before)

    until(right, f"{kind} {name} put right", seconds=15)
    until_quiet(operator)
    assert dict(written(operator) - start) == {(kind, "apply"): 1}, "one write, and the status says the same"


def _wanted(thing: Json) -> Json:
    return {k: v for k, v in thing.items() if k not in ("metadata", "status")}


def test_deleted_children_come_back(operator: Process, stack: Make, api: Api, namespace: str) -> None:
    stack(spec())
    until_quiet(operator)
    start = written(operator)
    for kind, name in (("Service", "demo-prefill"), ("ServiceAccount", "demo-router")):
        before = api.get("v1", kind, name, namespace)
        assert before is not None, f"{kind} {name} is not there"
        api.delete("v1", kind, name, namespace)

        def new(kind: str = kind, name: str = name, uid: str = before["metadata"]["uid"]) -> bool:
            now = api.get("v1", kind, name, namespace)
            return now is not None and now["metadata"]["uid"] != uid

        until(new, f"a new {kind} {name}", seconds=15)
    until_quiet(operator)
    assert dict(written(operator) - start) == {("Service", "apply"): 1, ("ServiceAccount", "apply"): 1}


@pytest.mark.full
def test_a_deleted_workload_comes_back_with_its_pods(
    operator: Process, stack: Make, api: Api, namespace: str
) -> None:
    one = stack(spec())
    (workload,) = [w for w in one.workloads() if "decode" in w["metadata"]["name"]]
    api.delete("apps/v1", "Deployment", workload["metadata"]["name"], namespace)
    until(lambda: one.capacity.serving()["decode"] < 3, "pods going", seconds=20)
    one.settle()
    until_quiet(operator)


@pytest.mark.full
def test_replicas_changed_by_hand_on_a_workload_are_put_back(
    operator: Process, stack: Make, api: Api, namespace: str
) -> None:
    one = stack(spec())
    (workload,) = [w for w in one.workloads() if "decode" in w["metadata"]["name"]]
    name = workload["metadata"]["name"]
    api.patch("apps/v1", "Deployment", name, namespace, {"spec": {"replicas": 1}})
    until(lambda: one.capacity.serving()["decode"] < 3, "pods going", seconds=20)
    one.settle()
    until_quiet(operator)


@pytest.mark.full
def test_another_field_manager_that_insists_is_overruled_and_the_rest_left_alone(
    operator: Process, stack: Make, api: Api, namespace: str
) -> None:
    stack(spec())
    until_quiet(operator)
    theirs = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "demo-prefill", "namespace": namespace, "annotations": {"theirs": "stays"}},
        "spec": {"publishNotReadyAddresses": False},
    }
    for _ in range(3):
        api.apply(theirs, manager="somebody")

        def right() -> bool:
            now = api.get("v1", "Service", "demo-prefill", namespace)
            return now is not None and now["spec"].get("publishNotReadyAddresses") is True

        until(right, "put right", seconds=15)
    found = api.get("v1", "Service", "demo-prefill", namespace)
    assert found is not None
    assert found["metadata"]["annotations"]["theirs"] == "stays"
    until_quiet(operator)
    assert not quiet(operator, 3)


@pytest.mark.full
def test_a_status_edited_by_hand_is_put_right(
    operator: Process, stack: Make, api: Api, namespace: str
) -> None:
    one = stack(spec())
    until_quiet(operator)
    before = one.body()["status"]
    start = written(operator)
    wrong = {"status": {"endpoint": "wrong", "conditions": []}}
    api.patch(PLAIT, "SharedKVDeployment", "demo", namespace, wrong, subresource="status")

    def right() -> bool:
        now = one.body()["status"]
        return bool(
            now.get("endpoint") == before.get("endpoint")
            and len(now["conditions"]) == len(before["conditions"])
        )

    until(right, "the status put right", seconds=15)
    until_quiet(operator)
    assert dict(written(operator) - start) == {("SharedKVDeployment", "status"): 1}


@pytest.mark.full
def test_an_object_of_somebody_else_with_a_childs_name_is_left_alone_and_told(
    operator: Process, stack: Make, api: Api, namespace: str
) -> None:
    theirs = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "demo-prefill", "namespace": namespace},
        "spec": {"ports": [{"port": 1234}], "selector": {"app": "theirs"}},
    }
    api.create(theirs)
    one = stack(spec(), settled=False)
    until(
        lambda: "demo-prefill" in str(one.body().get("status")),
        "the status tells of it",
        seconds=30,
        why_not=one.told,
    )
    found = api.get("v1", "Service", "demo-prefill", namespace)
    assert found is not None
    assert found["spec"]["selector"] == {"app": "theirs"}
    api.delete("v1", "Service", "demo-prefill", namespace)
    # Nobody tells the operator of an object that is not its own: it looks again, later and later.
    one.settle()
    until(lambda: "is there already" not in str(one.body()["status"]), "the status is clean", seconds=60)


def test_names_of_63_characters(operator: Process, stack: Make) -> None:
    one = stack(spec(), "n" * 63)
    assert all(len(w["metadata"]["name"]) <= 63 for w in one.workloads())
    until_quiet(operator)
    assert not quiet(operator, 3)
    one.change(decode={"image": "sglang:other"})
    one.settle()
    one.keeps(prefill=2, decode=3)


@pytest.mark.full
def test_two_alike_in_one_namespace_do_not_touch_each_other(operator: Process, stack: Make) -> None:
    one, other = stack(spec(), "twin"), stack(spec(), "twin-b")
    before = {p["metadata"]["uid"] for p in other.pods()}
    one.change(decode={"replicas": 1})
    one.settle()
    one.delete()
    one.api.until_gone(PLAIT, "SharedKVDeployment", "twin", one.namespace)
    assert {p["metadata"]["uid"] for p in other.pods()} == before
    other.keeps(prefill=2, decode=3)


def test_two_alike_in_two_namespaces(
    operators: Operators, plane: Cluster, api: Api, namespace: str, stack: Make
) -> None:
    second = f"{namespace[:50]}-b"
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": second}})
    operator = operators.operator(*FLAGS, f"--watch-namespace={second}")
    operator.start()
    one, two = stack(spec()), Stack(plane, second)
    try:
        two.create(spec())
        two.settle()
        assert one.revisions() == two.revisions(), "equal specs have equal revisions"
        two.delete()
        api.until_gone(PLAIT, "SharedKVDeployment", "demo", second)
        one.settle()
        one.keeps(prefill=2, decode=3)
        until_quiet(operator)
    finally:
        two.capacity.stop()
        api.delete("v1", "Namespace", second)


def test_a_changed_image_of_one_role_restarts_that_role_alone(operator: Process, stack: Make) -> None:
    one = stack(spec(decode=behaves("slow", delay="500ms")))
    before = {p["metadata"]["uid"] for p in one.pods("prefill")}
    revisions = one.revisions()
    one.change(decode={"image": "sglang:v0.5.17-b"})
    one.settle()
    assert {p["metadata"]["uid"] for p in one.pods("prefill")} == before
    assert one.revisions()["prefill"] == revisions["prefill"]
    assert one.revisions()["decode"] != revisions["decode"]
    assert {p["spec"]["containers"][0]["image"] for p in one.pods("decode")} == {"sglang:v0.5.17-b"}
    assert {p["metadata"]["labels"][REVISION] for p in one.pods("decode")} == set(one.revisions()["decode"])
    one.keeps(prefill=2, decode=3)
    assert one.capacity.most["decode"] <= 4, "maxSurge holds"
