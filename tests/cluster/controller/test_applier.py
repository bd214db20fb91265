"""What actions do at a real API server, and what they leave alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.cluster.harness.api import PLAIT, Api

from plait_operator.actions import Action, Apply, Delete, Event, Plan, SetFinalizer, SetGate, WriteStatus
from plait_operator.apply.applier import Applier, Outcome
from plait_operator.apply.client import Client
from plait_operator.apply.errors import FencedError
from plait_operator.apply.events import Recorder
from plait_operator.apply.fence import Closed, Fence
from plait_operator.apply.meters import Meters
from plait_operator.controller.store import Key, Store
from plait_operator.names import ADMITTED_GATE, FINALIZER, INSTANCE, MANAGED_BY, MANAGER, SEED
from plait_operator.observed import Ref

Json = dict[str, Any]
Carry = Callable[..., Outcome]


@pytest.fixture
def carry(applier: Applier, store: Store, deployment: Json) -> Carry:
    """Carries actions out as the controller does: with what the store knows."""

    def carry(*actions: Action) -> Outcome:
        found = store.view(Key(deployment["metadata"]["namespace"], "demo"))
        assert found is not None
        return applier.carry_out(Plan(actions), body=found.body, known=found.children)

    return carry


def child(owner: Json, kind: str = "ConfigMap", name: str = "demo-x", **fields: Any) -> Json:
    meta = owner["metadata"]
    return {
        "apiVersion": "v1",
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "labels": {INSTANCE: meta["name"], MANAGED_BY: MANAGER},
            "ownerReferences": [
                {
                    "apiVersion": PLAIT,
                    "kind": "SharedKVDeployment",
                    "name": meta["name"],
                    "uid": meta["uid"],
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        **(fields or {"data": {"a": "1"}}),
    }


def writes(meters: Meters) -> float:
    found = meters.registry.collect()
    return sum(s.value for f in found for s in f.samples if s.name == "plait_operator_writes_total")


def test_the_same_again_changes_nothing(carry: Carry, api: Api, deployment: Json, namespace: str) -> None:
    assert carry(Apply(child(deployment))).writes == 1
    first = api.get("v1", "ConfigMap", "demo-x", namespace)
    carry(Apply(child(deployment)))
    again = api.get("v1", "ConfigMap", "demo-x", namespace)
    assert first is not None
    assert again is not None
    assert first["metadata"]["resourceVersion"] == again["metadata"]["resourceVersion"]


def test_what_was_written_is_known_at_once(
    carry: Carry, store: Store, deployment: Json, namespace: str
) -> None:
    carry(Apply(child(deployment)))
    found = store.view(Key(namespace, "demo"))
    assert found is not None
    assert found.children[Ref("v1", "ConfigMap", "demo-x")]["data"] == {"a": "1"}


def test_a_field_taken_by_another_manager_is_taken_back_and_its_own_left(
    carry: Carry, api: Api, deployment: Json, namespace: str
) -> None:
    carry(Apply(child(deployment)))
    edit = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "demo-x", "namespace": namespace}}
    api.apply(edit | {"data": {"a": "stolen", "b": "theirs"}}, manager="somebody")
    carry(Apply(child(deployment)))
    found = api.get("v1", "ConfigMap", "demo-x", namespace)
    assert found is not None
    assert found["data"] == {"a": "1", "b": "theirs"}


def test_a_field_that_is_wanted_no_more_goes(
    carry: Carry, api: Api, deployment: Json, namespace: str
) -> None:
    carry(Apply(child(deployment, data={"a": "1", "b": "2"})))
    carry(Apply(child(deployment, data={"a": "1"})))
    found = api.get("v1", "ConfigMap", "demo-x", namespace)
    assert found is not None
    assert found["data"] == {"a": "1"}


# Whose is it?


def test_an_object_of_somebody_else_is_not_taken_over(
    carry: Carry, api: Api, deployment: Json, namespace: str
) -> None:
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "demo-x", "namespace": namespace}}
    api.create(theirs | {"data": {"a": "theirs"}})
    outcome = carry(Apply(child(deployment)))
    (message,) = outcome.refusals.values()
    assert "nobody owns it" in message
    assert "another name" in message
    found = api.get("v1", "ConfigMap", "demo-x", namespace)
    assert found is not None
    assert found["data"] == {"a": "theirs"}


def test_a_child_of_an_earlier_deployment_of_the_name_is_waited_for(
    carry: Carry, api: Api, deployment: Json
) -> None:
    old = child(deployment)
    old["metadata"]["ownerReferences"][0]["uid"] = "00000000-0000-0000-0000-000000000000"
    old["metadata"]["ownerReferences"][0]["blockOwnerDeletion"] = False
    api.create(old)
    outcome = carry(Apply(child(deployment)))
    if outcome.refusals:  # the garbage collector may have been quicker
        assert "an earlier deployment of this name" in next(iter(outcome.refusals.values()))
        assert outcome.again


def test_a_child_whose_owner_was_taken_off_by_hand_is_ours_again(
    carry: Carry, api: Api, store: Store, deployment: Json, namespace: str
) -> None:
    carry(Apply(child(deployment)))
    loose = api.patch("v1", "ConfigMap", "demo-x", namespace, {"metadata": {"ownerReferences": None}})
    store.put(loose)
    assert not carry(Apply(child(deployment))).refusals
    found = api.get("v1", "ConfigMap", "demo-x", namespace)
    assert found is not None
    assert found["metadata"]["ownerReferences"][0]["uid"] == deployment["metadata"]["uid"]


def test_a_child_without_an_owner_is_left_behind_by_a_deployment_that_goes(
    carry: Carry, api: Api, store: Store, deployment: Json, namespace: str
) -> None:
    """The plan is older than the deletion: with an owner that goes, the child would be collected."""
    carry(Apply(child(deployment)), SetFinalizer(present=True))
    api.delete(PLAIT, "SharedKVDeployment", "demo", namespace)
    store.put(api.patch("v1", "ConfigMap", "demo-x", namespace, {"metadata": {"ownerReferences": None}}))
    outcome = carry(Apply(child(deployment)), Apply(child(deployment, name="demo-y")))
    assert outcome.again
    assert (outcome.writes, outcome.refusals) == (0, {})
    found = api.get("v1", "ConfigMap", "demo-x", namespace)
    assert found is not None
    assert "ownerReferences" not in found["metadata"]
    # And the next plan knows.
    known = store.view(Key(namespace, "demo"))
    assert known is not None
    assert known.body["metadata"]["deletionTimestamp"]


def test_a_seed_is_sown_once_and_never_over_what_has_grown(
    carry: Carry, api: Api, store: Store, deployment: Json, namespace: str
) -> None:
    seed = child(deployment, "SharedKVRole", "demo-prefill", spec={"replicas": 1}) | {"apiVersion": PLAIT}
    carry(Apply(seed, manager=SEED))
    grown = api.patch(PLAIT, "SharedKVRole", "demo-prefill", namespace, {"spec": {"replicas": 5}})
    store.drop(grown)  # as if its watch were late
    assert carry(Apply(seed, manager=SEED)).writes == 0
    found = api.get(PLAIT, "SharedKVRole", "demo-prefill", namespace)
    assert found is not None
    assert found["spec"]["replicas"] == 5


# Deletes.


def test_only_what_was_seen_is_deleted(
    carry: Carry, api: Api, store: Store, deployment: Json, namespace: str
) -> None:
    carry(Apply(child(deployment)))
    seen = api.get("v1", "ConfigMap", "demo-x", namespace)
    assert seen is not None
    meta = seen["metadata"]
    api.patch("v1", "ConfigMap", "demo-x", namespace, {"metadata": {"ownerReferences": None}})
    ref = Ref("v1", "ConfigMap", "demo-x")
    outcome = carry(Delete(ref, meta["uid"], version=meta["resourceVersion"]))
    assert (outcome.again, outcome.refusals) == (True, {})
    assert api.get("v1", "ConfigMap", "demo-x", namespace) is not None


def test_only_the_object_meant_is_deleted(
    carry: Carry, api: Api, store: Store, deployment: Json, namespace: str
) -> None:
    carry(Apply(child(deployment)))
    ref = Ref("v1", "ConfigMap", "demo-x")
    outcome = carry(Delete(ref, "11111111-1111-1111-1111-111111111111"))
    assert not outcome.refusals
    found = api.get("v1", "ConfigMap", "demo-x", namespace)
    assert found is not None
    carry(Delete(ref, found["metadata"]["uid"]))
    assert api.get("v1", "ConfigMap", "demo-x", namespace) is None
    view = store.view(Key(namespace, "demo"))
    assert view is not None
    assert not view.children, "and is known to be gone at once"
    assert not carry(Delete(ref, found["metadata"]["uid"])).refusals, "gone already is fine"


# Refusals.


def test_a_refusal_is_told_and_stops_nothing_else(
    carry: Carry, api: Api, deployment: Json, namespace: str
) -> None:
    api.create(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "none", "namespace": namespace},
            "spec": {"hard": {"services": "0"}},
        }
    )
    service = child(deployment, "Service", "demo-s", spec={"ports": [{"port": 80}], "selector": {"a": "b"}})
    bad = child(deployment, "Service", "demo-t", spec={"ports": [{"port": 99999999}], "selector": {"a": "b"}})
    outcome = carry(Apply(service), Apply(bad), Apply(child(deployment)), WriteStatus({"endpoint": "e"}))
    assert "exceeded quota" in outcome.refusals[Ref("v1", "Service", "demo-s")]
    assert "99999999" in outcome.refusals[Ref("v1", "Service", "demo-t")]
    assert outcome.again
    assert outcome.writes == 2
    assert api.get("v1", "ConfigMap", "demo-x", namespace) is not None


def test_without_the_right_to_write_nothing_is_sent(
    make_client: Callable[[Fence], Client],
    api: Api,
    store: Store,
    deployment: Json,
    namespace: str,
    meters: Meters,
) -> None:
    applier = Applier(make_client(Closed()), Recorder("tests"), store)
    actions = (
        Apply(child(deployment)),
        Delete(Ref("v1", "ConfigMap", "demo-x"), "u"),
        SetFinalizer(True),
        WriteStatus({"endpoint": "e"}),
        SetGate("p", "u", open=True),
        Event("Normal", "R", "m"),
    )
    for action in actions:
        with pytest.raises(FencedError):
            applier.carry_out(Plan((action,)), body=deployment, known={})
    assert writes(meters) == 0
    found = api.get(PLAIT, "SharedKVDeployment", "demo", namespace)
    assert found is not None
    assert found["metadata"]["resourceVersion"] == deployment["metadata"]["resourceVersion"]


# The deployment itself.


def test_a_status_is_replaced_whole_even_where_a_person_wrote_into_it(
    carry: Carry, api: Api, store: Store, namespace: str
) -> None:
    condition = {
        "type": "Available",
        "status": "True",
        "reason": "R",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    wanted = {"observedGeneration": 1, "endpoint": "e", "conditions": [condition | {"message": "m"}]}
    carry(WriteStatus(wanted))
    edited = api.patch(
        PLAIT,
        "SharedKVDeployment",
        "demo",
        namespace,
        {"status": {"endpoint": "wrong", "decodeSelector": "wrong"}},
        subresource="status",
    )
    store.put_deployment(edited)
    carry(WriteStatus(wanted))
    found = api.get(PLAIT, "SharedKVDeployment", "demo", namespace)
    assert found is not None
    assert found["status"] == wanted


def test_finalizers_of_others_are_left_alone(carry: Carry, api: Api, store: Store, namespace: str) -> None:
    def held() -> Any:
        found = api.get(PLAIT, "SharedKVDeployment", "demo", namespace)
        assert found is not None
        return found["metadata"].get("finalizers")

    assert carry(SetFinalizer(True)).writes == 1
    assert carry(SetFinalizer(True)).writes == 0
    assert held() == [FINALIZER]
    theirs = {"metadata": {"finalizers": ["example.com/a", FINALIZER, "example.com/b"]}}
    edited = api.patch(PLAIT, "SharedKVDeployment", "demo", namespace, theirs)
    # The store is late: the patch must fail rather than take off another one.
    outcome = carry(SetFinalizer(False))
    assert outcome.again
    assert held() == ["example.com/a", FINALIZER, "example.com/b"]
    store.put_deployment(edited)
    assert carry(SetFinalizer(False)).writes == 1
    assert held() == ["example.com/a", "example.com/b"]
    api.patch(PLAIT, "SharedKVDeployment", "demo", namespace, {"metadata": {"finalizers": None}})


def test_the_finalizer_stays_where_something_failed(
    carry: Carry, api: Api, store: Store, deployment: Json, namespace: str
) -> None:
    carry(SetFinalizer(True))
    bad = child(deployment, "Service", "demo-t", spec={"ports": [{"port": 99999999}]})
    carry(Apply(bad), SetFinalizer(False))
    found = api.get(PLAIT, "SharedKVDeployment", "demo", namespace)
    assert found is not None
    assert found["metadata"]["finalizers"] == [FINALIZER]


def test_a_deployment_made_anew_is_not_written_by_an_old_plan(
    applier: Applier, api: Api, store: Store, deployment: Json, namespace: str
) -> None:
    api.delete(PLAIT, "SharedKVDeployment", "demo", namespace)
    assert applier.carry_out(Plan((WriteStatus({"endpoint": "old"}),)), body=deployment, known={}).missing
    api.create(
        {k: deployment[k] for k in ("apiVersion", "kind", "spec")}
        | {"metadata": {"name": "demo", "namespace": namespace}}
    )
    outcome = applier.carry_out(
        Plan((WriteStatus({"endpoint": "old"}), SetFinalizer(True))), body=deployment, known={}
    )
    assert outcome.again
    assert outcome.writes == 0
    found = api.get(PLAIT, "SharedKVDeployment", "demo", namespace)
    assert found is not None
    assert "status" not in found
    assert "finalizers" not in found["metadata"]


# Gates and events.


def test_a_gate_is_set_and_the_kubelets_conditions_stay(carry: Carry, api: Api, namespace: str) -> None:
    pod = api.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", "namespace": namespace},
            "spec": {
                "nodeName": "nowhere",
                "readinessGates": [{"conditionType": ADMITTED_GATE}],
                "containers": [{"name": "c", "image": "i"}],
            },
        }
    )
    told = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    api.patch("v1", "Pod", "p", namespace, {"status": {"conditions": [told]}}, subresource="status")

    def conditions() -> dict[str, str]:
        found = api.get("v1", "Pod", "p", namespace)
        assert found is not None
        return {c["type"]: c["status"] for c in found["status"]["conditions"]}

    carry(SetGate("p", pod["metadata"]["uid"], open=True, why="2 of 2 routers"))
    assert conditions() == {"Ready": "False", ADMITTED_GATE: "True"}
    carry(SetGate("p", pod["metadata"]["uid"], open=False))
    assert conditions() == {"Ready": "False", ADMITTED_GATE: "False"}
    outcome = carry(SetGate("p", "22222222-2222-2222-2222-222222222222", open=True))
    assert outcome.again
    assert not outcome.refusals
    assert conditions() == {"Ready": "False", ADMITTED_GATE: "False"}
    assert carry(SetGate("gone", "u", open=True)).again
    assert api.get("v1", "Pod", "gone", namespace) is None
    api.delete("v1", "Pod", "p", namespace, grace=0)


def test_events_stand_on_the_deployment(carry: Carry, api: Api, deployment: Json, namespace: str) -> None:
    carry(Event("Warning", "Stuck", "no room"), Event("Warning", "Stuck", "no room"))
    (event,) = [
        e
        for e in api.list("events.k8s.io/v1", "Event", namespace)
        if e["regarding"]["uid"] == deployment["metadata"]["uid"]
    ]
    assert (event["type"], event["reason"], event["note"]) == ("Warning", "Stuck", "no room")
