"""Pods and workloads, as a rollout sees them."""

from __future__ import annotations

from typing import Any

import pytest

from plait_operator import names
from plait_operator.observed import EngineFact, Manifest, Observed, PodFact, Ref, RouterFact
from plait_operator.plan.engines import role_state, role_view, router_view, workloads_of
from plait_operator.plan.roles import RevisionState, RoleState

WIRE = "a" * 16


def load(revision: str = "r1", *, role: str = "decode", kind: str = "Deployment", **more: Any) -> Manifest:
    spec: dict[str, Any] = {"replicas": more.get("replicas", 2)}
    if kind == "LeaderWorkerSet":
        spec["leaderWorkerTemplate"] = {"size": more.get("size", 2)}
    meta = {
        "name": f"glm-{role}-{revision}",
        "uid": "u",
        "generation": more.get("generation", 1),
        "labels": {names.ROLE: role, names.REVISION: revision, names.WIRE_HASH: more.get("wire", WIRE)},
    }
    if more.get("going"):
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    status = {"observedGeneration": more.get("seen", 1), "replicas": more.get("reported", 2)}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": meta, "spec": spec, "status": status}


def pod(name: str = "p", revision: str = "r1", **fact: Any) -> PodFact:
    return PodFact(name, f"u-{name}", fact.pop("role", "decode"), revision, **{"phase": "Running", **fact})


def seen(*pods: PodFact, loads: tuple[Manifest, ...] = (), routers: tuple[RouterFact, ...] = ()) -> Observed:
    return Observed(children={Ref.of(one): one for one in loads}, pods=pods, routers=routers)


def state(observed: Observed, *, target: str = "r1", gated: bool = True) -> RoleState:
    return role_state(observed, "decode", deployment="glm", target=target, wire=WIRE, wanted=2, gated=gated)


def only(observed: Observed, **more: Any) -> RevisionState:
    return state(observed, **more).revisions[0]


READY = {"ready": True, "containers_ready": True, "admitted": True}
PODS = [
    # (name, pod's facts, pods, deleting, ready, failing)
    ("starting", {}, 1, 0, 0, 0),
    ("ready", READY, 1, 0, 1, 0),
    ("behind the gate", {"containers_ready": True}, 1, 0, 0, 0),
    ("on its way out", {**READY, "deleting": True}, 0, 1, 0, 0),
    ("evicted", {"phase": "Failed"}, 0, 0, 0, 0),
    ("ended", {"phase": "Succeeded"}, 0, 0, 0, 0),
    ("no image", {"waiting": "ImagePullBackOff: engine: denied"}, 1, 0, 0, 1),
    ("crashing", {"restarts": 4}, 1, 0, 0, 1),
    ("came back after a crash", {**READY, "restarts": 4}, 1, 0, 1, 0),
    ("no node", {"unschedulable": "0/3 nodes", "phase": "Pending"}, 1, 0, 0, 1),
    ("preflight said no", {"preflight_failed": True}, 1, 0, 0, 1),
    ("on its way out and crashing", {"deleting": True, "restarts": 4}, 0, 1, 0, 0),
]


@pytest.mark.parametrize(
    ("fact", "pods", "deleting", "ready", "failing"), [pytest.param(*row[1:], id=row[0]) for row in PODS]
)
def test_a_pod(fact: dict[str, Any], pods: int, deleting: int, ready: int, failing: int) -> None:
    one = only(seen(pod(**fact), loads=(load(),)))
    assert (one.pods, one.deleting, one.ready, one.failing) == (pods, deleting, ready, failing)


def test_without_routers_nobody_opens_the_gate() -> None:
    observed = seen(pod(containers_ready=True), loads=(load(),))
    assert only(observed, gated=True).ready == 0
    assert only(observed, gated=False).ready == 1


LOADS = [
    # (name, workload, replicas, settled)
    ("seen", {}, 2, True),
    ("not seen yet", {"generation": 3, "seen": 2}, 2, False),
    ("on its way out", {"going": True}, 0, False),
    ("at zero", {"replicas": 0}, 0, True),
]


@pytest.mark.parametrize(
    ("more", "replicas", "settled"), [pytest.param(*row[1:], id=row[0]) for row in LOADS]
)
def test_a_workload(more: dict[str, Any], replicas: int, settled: bool) -> None:
    one = only(seen(loads=(load(**more),)))
    assert (one.replicas, one.settled, one.exists, one.wire) == (replicas, settled, True, WIRE)


def test_the_target_is_there_even_when_nothing_is() -> None:
    told = state(seen(), target="new")
    assert [one.revision for one in told.revisions] == ["new"]
    assert not told.revisions[0].exists


def test_roles_and_other_children_are_kept_apart() -> None:
    router = load("x", role="router")
    del router["metadata"]["labels"][names.REVISION]
    observed = seen(loads=(load("r1"), load("r2", role="prefill"), router))
    assert list(workloads_of(observed, "decode")) == ["r1"]
    assert list(workloads_of(observed, "prefill")) == ["r2"]
    assert workloads_of(observed, "router") == {}


def test_pods_that_lost_their_workload_pair_by_what_routers_say() -> None:
    said = RouterFact("router", True, 1.0, engines=(EngineFact("u-p/77", True, True, wire_hash="b" * 64),))
    observed = seen(pod("p", "old", **READY), routers=(said,))
    one = next(one for one in state(observed).revisions if one.revision == "old")
    assert (one.exists, one.wire, one.ready) == (False, "b" * 16, 1)
    unknown = next(one for one in state(seen(pod("p", "old", **READY))).revisions if one.revision == "old")
    assert unknown.wire == "unknown-old"


def test_an_old_revisions_wire_is_its_label_and_the_targets_is_told() -> None:
    told = state(seen(loads=(load("r1", wire=""), load("r0", wire="c" * 16))), target="r1")
    assert {one.revision: one.wire for one in told.revisions} == {"r0": "c" * 16, "r1": WIRE}


def test_trouble_names_its_reason_and_stays_the_same() -> None:
    one = only(
        seen(
            pod("b", waiting="ImagePullBackOff: x"), pod("a", waiting="ImagePullBackOff: x"), loads=(load(),)
        )
    )
    assert one.trouble == "ImagePullFailed: pod a and 1 more: ImagePullBackOff: x"
    assert only(seen(pod(containers_ready=True), loads=(load(),))).trouble == ""


def group(number: int, worker: int, **fact: Any) -> PodFact:
    return pod(f"g{number}-{worker}", group=str(number), worker=worker, **fact)


GROUPS = [
    ("whole", [group(0, 0, **READY), group(0, 1, **READY)], 1, 0, (0,)),
    ("half", [group(0, 0, **READY)], 1, 0, ()),
    ("one not ready", [group(0, 0, **READY), group(0, 1)], 1, 0, ()),
    (
        "one being replaced",
        [group(0, 0, **READY), group(0, 1, **READY), group(0, 1, deleting=True)],
        1,
        0,
        (),
    ),
    ("on its way out", [group(0, 0, deleting=True), group(0, 1, deleting=True)], 0, 1, ()),
    (
        "the second of two",
        [group(0, 0), group(0, 1), group(1, 0, **READY), group(1, 1, **READY)],
        2,
        0,
        (1,),
    ),
]


@pytest.mark.parametrize(
    ("pods", "count", "deleting", "ready_at"), [pytest.param(*row[1:], id=row[0]) for row in GROUPS]
)
def test_groups(pods: list[PodFact], count: int, deleting: int, ready_at: tuple[int, ...]) -> None:
    one = only(seen(*pods, loads=(load(kind="LeaderWorkerSet"),)))
    assert (one.pods, one.deleting, one.ready, one.ready_at) == (count, deleting, len(ready_at), ready_at)


def test_a_view_counts_all_revisions_and_the_newest_apart() -> None:
    observed = seen(
        pod("a", "r0", **READY), pod("b", "r1", **READY), pod("c", "r1"),
        loads=(load("r0", wire="old"), load("r1")),
    )  # fmt: skip
    told = {
        "decode": state(observed, target="r1"),
        "prefill": RoleState(
            wanted=1, target="x", wire=WIRE, revisions=(RevisionState(revision="x", wire=WIRE, ready=1),)
        ),
    }
    view = role_view(told, "decode")  # type: ignore[arg-type]
    assert (view.wanted, view.pods, view.ready, view.updated, view.updated_ready) == (2, 3, 2, 2, 1)
    # The old one has no partner of its wire: it is ready and serves nothing.
    assert view.serving == 1
    assert view.revision == "r1"


ROUTERS = [
    # (name, pods ready, status, updated, updated_ready)
    ("all new", [True, True], {"updatedReplicas": 2}, 2, 2),
    ("one old, which may be the ready one", [True, False], {"updatedReplicas": 1}, 1, 0),
    ("one old, both ready", [True, True], {"updatedReplicas": 1}, 1, 1),
    ("change not seen yet", [True, True], {"updatedReplicas": 2, "observedGeneration": 0}, 0, 0),
    ("none", [], {}, 0, 0),
]


@pytest.mark.parametrize(
    ("ready", "status", "updated", "updated_ready"), [pytest.param(*row[1:], id=row[0]) for row in ROUTERS]
)
def test_routers(ready: list[bool], status: dict[str, Any], updated: int, updated_ready: int) -> None:
    live: Manifest = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "glm-router", "generation": 1, "labels": {}},
        "status": {"observedGeneration": 1, **status},
    }
    pods = [pod(f"p{n}", "", role="router", ready=is_ready) for n, is_ready in enumerate(ready)]
    view = router_view(seen(*pods, loads=(live,)), name="glm-router", wanted=2)
    assert (view.pods, view.ready, view.updated, view.updated_ready) == (
        len(ready),
        sum(ready),
        updated,
        updated_ready,
    )
