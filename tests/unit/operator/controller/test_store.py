"""The store: versions only go forward, owners decide, and what is gone stays gone."""

from __future__ import annotations

from typing import Any

import pytest

from plait_operator.apply.kinds import CHILDREN, POD
from plait_operator.controller.store import Key, Store
from plait_operator.names import INSTANCE, MANAGED_BY, MANAGER
from plait_operator.observed import Ref, RouterFact

KEY = Key("ns", "demo")
SERVICE = next(k for k in CHILDREN if k.kind == "Service")
REF = Ref("v1", "Service", "demo")


def body(version: int = 10, *, uid: str = "d1", **meta: Any) -> dict[str, Any]:
    return {
        "apiVersion": "plait.dev/v1alpha1",
        "kind": "SharedKVDeployment",
        "metadata": {
            "name": "demo", "namespace": "ns", "uid": uid, "resourceVersion": str(version),
            "managedFields": [{"manager": "x" * 500}], **meta,
        },
        "spec": {"model": {"name": "m"}},
    }  # fmt: skip


def service(version: int = 20, *, uid: str = "s1", owner: str = "d1", name: str = "demo") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name, "namespace": "ns", "uid": uid, "resourceVersion": str(version),
            "labels": {INSTANCE: "demo", MANAGED_BY: MANAGER},
            "ownerReferences": [
                {"kind": "SharedKVDeployment", "name": "demo", "uid": owner, "controller": True}
            ],
        },
        "spec": {"version": version},
    }  # fmt: skip


HELD = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r1", "controller": True}]


def pod(
    version: int = 30, *, name: str = "p", uid: str = "p1", owners: Any = HELD, **status: Any
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "ns", "uid": uid, "resourceVersion": str(version),
            "labels": {INSTANCE: "demo", MANAGED_BY: MANAGER}, "ownerReferences": owners,
        },
        "spec": {},
        "status": status,
    }  # fmt: skip


@pytest.fixture
def store() -> Store:
    store = Store()
    store.put_deployment(body())
    return store


def children(store: Store) -> dict[Ref, Any]:
    found = store.view(KEY)
    assert found is not None
    return dict(found.children)


def test_a_view_has_it_all_without_managed_fields(store: Store) -> None:
    assert store.put(service()) == KEY
    assert store.put(pod(phase="Running")) == KEY
    found = store.view(KEY)
    assert found is not None
    assert found.body["spec"] == {"model": {"name": "m"}}
    assert "managedFields" not in found.body["metadata"]
    assert found.children == {REF: service()}
    assert [p.phase for p in found.pods] == ["Running"]


def test_nothing_is_seen_of_a_deployment_that_is_not_there() -> None:
    assert Store().view(KEY) is None


@pytest.mark.parametrize(("version", "told"), [(19, None), (20, None), (21, KEY)])
def test_an_older_version_never_replaces_a_newer_one(store: Store, version: int, told: Key | None) -> None:
    store.put(service(20))
    assert store.put(service(version)) == told
    assert children(store)[REF]["spec"] == {"version": max(20, version)}


def test_children_of_an_earlier_deployment_of_the_name_are_not_ours(store: Store) -> None:
    store.put(service(owner="d0"))
    assert children(store) == {}


def test_a_child_is_found_by_its_owner_when_its_label_was_edited(store: Store) -> None:
    edited = service()
    edited["metadata"]["labels"][INSTANCE] = "other"
    assert store.put(edited) == KEY


def test_what_belongs_to_nobody_is_left_alone(store: Store) -> None:
    stray = pod()
    stray["metadata"]["labels"] = {}
    assert store.put(stray) is None


def test_a_pod_that_only_its_kubelet_sees_change_is_no_news(store: Store) -> None:
    assert store.put(pod(30, phase="Running")) == KEY
    assert store.put(pod(31, phase="Running", hostIP="1.2.3.4")) is None
    assert store.put(pod(32, phase="Failed")) == KEY


def test_a_delete_of_an_earlier_object_does_not_hit_the_new_one(store: Store) -> None:
    store.put(service(21, uid="s2"))
    assert store.drop(service(20, uid="s1")) is None
    assert REF in children(store)
    assert store.drop(service(22, uid="s2")) == KEY
    assert children(store) == {}


def test_a_pod_goes(store: Store) -> None:
    store.put(pod(30))
    assert store.drop(pod(31, uid="other")) is None
    assert store.drop(pod(31)) == KEY
    assert store.pods(KEY) == ()


def test_a_pod_that_bears_our_labels_and_that_no_controller_holds_is_not_one_of_ours(store: Store) -> None:
    assert store.put(pod(30, owners=[], phase="Running")) is None
    assert store.put(pod(31, owners=[], phase="Failed")) is None
    found = store.view(KEY)
    assert found is not None
    assert found.pods == store.pods(KEY) == ()
    assert store.drop(pod(32)) == KEY
    assert store.counts()["Pod"] == 0


def test_a_pod_that_its_controller_lets_go_is_ours_no_more_until_one_takes_it(store: Store) -> None:
    store.put(pod(30))
    assert store.put(pod(31, owners=[])) == KEY, "one less is news"
    assert store.pods(KEY) == ()
    assert store.put(pod(30)) is None
    assert store.pods(KEY) == (), "an older version does not bring it back"
    assert store.put(pod(32)) == KEY
    assert [p.name for p in store.pods(KEY)] == ["p"]


# Lists.


def test_a_list_drops_what_no_watch_told_to_be_gone(store: Store) -> None:
    store.put(service(20))
    store.put(service(21, uid="s2", name="other"))
    found = store.retain(SERVICE, "", {(KEY, "other")}, version=25)
    assert (found.keys, found.lost) == ({KEY}, 1)
    assert [r.name for r in children(store)] == ["other"]


def test_a_list_does_not_drop_what_is_newer_than_itself(store: Store) -> None:
    store.put(service(30))
    assert store.retain(SERVICE, "", set(), version=25).lost == 0
    assert REF in children(store)


def test_a_list_of_one_kind_or_namespace_leaves_the_others(store: Store) -> None:
    store.put(service(20))
    store.put(pod(20))
    assert store.retain(POD, "", set(), version=25).lost == 1
    assert store.retain(SERVICE, "elsewhere", set(), version=25).lost == 0
    assert REF in children(store)


# Answers to writes.


def test_an_answer_is_known_before_its_event_comes(store: Store) -> None:
    store.reached(SERVICE, "", 15)
    store.took(service(20))
    assert REF in children(store)
    assert store.put(service(20)) is None, "its event is no news any more"


def test_an_answer_about_an_object_that_the_watch_saw_go_does_not_bring_it_back(store: Store) -> None:
    store.reached(SERVICE, "", 25)
    store.took(service(20))
    assert children(store) == {}


def test_an_answer_renews_what_is_held(store: Store) -> None:
    store.put(service(20))
    store.reached(SERVICE, "", 30)
    store.took(service(25))
    assert children(store)[REF]["spec"] == {"version": 25}


def test_an_answer_does_not_bring_a_deployment_back(store: Store) -> None:
    store.drop_deployment(KEY, uid="d1")
    store.took(body(12))
    assert store.view(KEY) is None


def test_an_answer_renews_a_deployment(store: Store) -> None:
    store.took(body(12) | {"status": {"seen": 1}})
    found = store.view(KEY)
    assert found is not None
    assert found.body["status"] == {"seen": 1}


def test_the_last_finalizer_taken_off_is_the_end(store: Store) -> None:
    store.took(body(12, deletionTimestamp="2026-01-01T00:00:00Z", finalizers=[]))
    assert store.view(KEY) is None


def test_a_delete_that_was_done_counts_at_once(store: Store) -> None:
    store.put(service(20))
    store.went("ns", REF, "another")
    assert REF in children(store)
    store.went("ns", REF, "s1")
    assert children(store) == {}


# Deployments and routers.


@pytest.mark.parametrize(("version", "told"), [(9, None), (10, KEY), (11, KEY)])
def test_deployments_only_go_forward(store: Store, version: int, told: Key | None) -> None:
    assert store.put_deployment(body(version)) == told


def test_a_delete_of_an_earlier_deployment_leaves_the_new_one(store: Store) -> None:
    store.drop_deployment(KEY, uid="d0")
    assert store.deployments() == [KEY]
    store.drop_deployment(KEY, uid="d1")
    assert store.deployments() == []


def test_what_routers_said_grows_old(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [50.0]
    monkeypatch.setattr("plait_operator.controller.store.time.monotonic", lambda: now[0])
    store.put_routers(KEY, (RouterFact("r", True, 0.5),))
    now[0] += 10
    assert [f.age_s for f in store.routers(KEY)] == [10.5]


def test_counts_by_kind(store: Store) -> None:
    store.put(service())
    store.put(pod())
    assert store.counts() == {"SharedKVDeployment": 1, "Pod": 1, "Service": 1}


def test_children_are_held_small(store: Store) -> None:
    import tracemalloc

    tracemalloc.start()
    for number in range(2000):
        store.put(service(100 + number, uid=f"uid-of-{number}", name=f"child-{number}"))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size / 2000 < 1000


def test_which_states_of_a_deployment_are_known(store: Store) -> None:
    assert store.knows(body(10))
    assert store.knows(body(9))
    assert not store.knows(body(11))
    store.drop_deployment(KEY)
    assert not store.knows(body(9))


def test_what_nobody_owns_is_told_apart(store: Store) -> None:
    free = service(name="free", uid="s2")
    free["metadata"]["ownerReferences"] = []
    for thing in (service(), service(name="others", uid="s3", owner="d0"), free):
        store.put(thing)
    found = store.view(KEY)
    assert found is not None
    assert set(found.children) == {REF}
    assert found.strays == {Ref("v1", "Service", "free")}
