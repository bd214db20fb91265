"""Whole plans in a small world: what is asked for, in which order, where it ends, and that it ends."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.operator.plan.world import World

from plait_operator import names
from plait_operator.actions import Apply, Delete, Event, SetFinalizer, SetGate, WriteStatus
from plait_operator.observed import Ref


def settled(**spec: Any) -> World:
    world = World(**spec)
    world.settle()
    return world


def kinds(actions: Any) -> list[str]:
    return [
        f"{type(one).__name__} {one.manifest['kind']}" if isinstance(one, Apply) else type(one).__name__
        for one in actions
    ]


def test_the_first_plan_makes_everything_in_order() -> None:
    actions = World().plan().actions
    assert isinstance(actions[0], SetFinalizer)
    assert actions[0].present
    told = kinds(actions)
    first = {name: told.index(name) for name in dict.fromkeys(told)}
    order = ["Apply ServiceAccount", "Apply NetworkPolicy", "Apply Service", "Apply ConfigMap", "WriteStatus"]
    assert [first[name] for name in order] == sorted(first[name] for name in order)
    workloads = [
        index
        for index, one in enumerate(actions)
        if isinstance(one, Apply) and names.REVISION in one.manifest["metadata"]["labels"]
        if one.manifest["kind"] == "Deployment"
    ]
    assert len(workloads) == 2
    assert first["Apply ConfigMap"] < min(workloads)
    assert told[-1] == "WriteStatus"


def test_everything_is_owned_labelled_and_stamped() -> None:
    for action in World().plan().actions:
        if isinstance(action, Apply):
            meta = action.manifest["metadata"]
            assert meta["namespace"] == "serving"
            assert meta["ownerReferences"][0]["uid"] == "u-0"
            assert meta["labels"][names.MANAGED_BY] == names.MANAGER
            assert meta["annotations"][names.APPLIED]
            assert action.manager == names.MANAGER


def test_it_comes_up_and_then_nothing_is_written() -> None:
    world = settled()
    assert world.said("Available") == ("True", "Serving")
    assert world.said("Progressing") == ("False", "Complete")
    assert world.said("Degraded") == ("False", "Healthy")
    assert world.plan() == ((), None)
    assert [event.reason for event in world.events] == ["Serving"]
    status = world.body["status"]
    assert status["prefill"]["pods"] == "2/2"
    assert status["decode"]["pods"] == "3/3"
    role = world.child("SharedKVRole", "glm-prefill")
    assert role["status"]["replicas"] == 2
    assert names.ROLE in role["status"]["selector"]


def test_time_alone_writes_nothing() -> None:
    world = settled()
    world.wait(3600)
    assert world.plan().actions == ()


WIRE: dict[str, Any] = {"cache": {"dtype": "bfloat16"}, "model": {"contextLength": 32768}}
# One row for each kind of change: what moves, and what stays.
CHANGES = [
    ("image of both", {"engine": {"image": "sglang:2"}}, {"prefill", "decode"}),
    ("image of prefill", {"prefill": {"image": "sglang:2"}}, {"prefill"}),
    ("image of decode", {"decode": {"image": "sglang:2"}}, {"decode"}),
    ("environment of decode", {"decode": {"env": [{"name": "A", "value": "1"}]}}, {"decode"}),
    ("environment of both", {"engine": {"env": [{"name": "A", "value": "1"}]}}, {"prefill", "decode"}),
    ("resources of prefill", {"prefill": {"resources": {"requests": {"cpu": "8"}}}}, {"prefill"}),
    ("a label on decode pods", {"decode": {"podTemplate": {"metadata": {"labels": {"x": "y"}}}}}, {"decode"}),
    ("chunk", {"prefill": {"chunk": 4096}}, {"prefill"}),
    ("split", {"cache": {"split": "page-zigzag"}}, {"prefill"}),
    ("a new wire", WIRE, {"prefill", "decode"}),
    ("transfer backend", {"transfer": {"backend": "mooncake_tcp"}}, {"prefill", "decode"}),
    ("drain", {"rollout": {"drainSeconds": 60}}, {"prefill", "decode"}),
    ("priority", {"pods": {"priorityClassName": "high"}}, {"prefill", "decode"}),
    ("pull secrets", {"pods": {"imagePullSecrets": [{"name": "s"}]}}, {"prefill", "decode"}),
    ("budgets", {"rollout": {"maxUnavailable": 1, "maxSurge": 2}}, set()),
    ("replicas", {"prefill": {"replicas": 3}, "decode": {"replicas": 1}}, set()),
    ("router replicas", {"router": {"replicas": 3}}, set()),
    ("router policy", {"router": {"policy": "round-robin"}}, set()),
    ("router port", {"router": {"service": {"port": 8080}}}, set()),
    ("policies off", {"pods": {"networkPolicies": False}}, set()),
    ("autoscaling", {"autoscaling": {"prefill": {"external": True, "maxReplicas": 4}}}, set()),
    ("decode to zero", {"decode": {"replicas": 0}}, set()),
    ("prefill to zero", {"prefill": {"replicas": 0}}, set()),
    ("routers to zero", {"router": {"replicas": 0}}, set()),
]  # fmt: skip


@pytest.mark.parametrize(("change", "moved"), [pytest.param(*row[1:], id=row[0]) for row in CHANGES])
def test_a_change_moves_the_roles_it_concerns_and_ends(change: dict[str, Any], moved: set[str]) -> None:
    world = settled()
    before = {role: set(world.replicas(role)) for role in ("prefill", "decode")}
    world.change(**change)
    world.settle()
    after = {role: set(world.replicas(role)) for role in ("prefill", "decode")}
    assert {role for role in after if after[role] != before[role]} == moved
    assert all(len(revisions) == 1 for revisions in after.values())
    wanted = {role: world.body["spec"][role]["replicas"] for role in after}
    assert {role: sum(world.replicas(role).values()) for role in after} == wanted
    assert world.said("Progressing") == ("False", "Complete")
    assert world.said("Degraded") == ("False", "Healthy")
    assert world.plan().actions == ()
    # Contracts of what is gone are gone, too.
    maps = {ref.name for ref in world.children if ref.kind == "ConfigMap"}
    assert len(maps) == 2
    assert all(next(iter(after[role])) in " ".join(maps) for role in after)


@pytest.mark.parametrize(("change", "moved"), [pytest.param(*row[1:], id=row[0]) for row in CHANGES])
@pytest.mark.parametrize("turns", [1, 2, 4])
def test_a_change_taken_back_mid_way_ends_where_it_began(
    change: dict[str, Any], moved: set[str], turns: int
) -> None:
    world = settled()
    spec = world.body["spec"]
    before = {role: world.replicas(role) for role in ("prefill", "decode")}
    world.change(**change)
    for _ in range(turns):
        world.step()
        world.run()
    world.change()
    world.body["spec"] = spec
    world.settle()
    assert {role: world.replicas(role) for role in ("prefill", "decode")} == before
    assert world.said("Available") == ("True", "Serving")


@pytest.mark.parametrize(("change", "moved"), [pytest.param(*row[1:], id=row[0]) for row in CHANGES])
def test_the_capacity_never_falls_below_the_budget(change: dict[str, Any], moved: set[str]) -> None:
    world = settled()
    least = {
        role: min(world.body["spec"][role]["replicas"], change.get(role, {}).get("replicas", 99))
        - change.get("rollout", {}).get("maxUnavailable", 0)
        for role in ("prefill", "decode")
    }
    world.change(**change)
    for _ in range(40):
        world.step()
        world.run()
        for role in least:
            ready = sum(pod.ready for pod in world.pods if pod.role == role and not pod.deleting)
            assert ready >= least[role]


# A hand on the children: the object that is meant, and what becomes of it.
HANDS = [
    "Service glm", "Service glm-prefill", "Deployment glm-router", "SharedKVRole glm-prefill",
    "PodDisruptionBudget glm-decode", "NetworkPolicy glm-deny", "ServiceAccount glm-router",
    "RoleBinding glm-router", "Role glm-router",
]  # fmt: skip


@pytest.mark.parametrize("which", HANDS)
def test_a_deleted_child_comes_back_alone(which: str) -> None:
    world = settled()
    ref = next(ref for ref in world.children if which == f"{ref.kind} {ref.name}")
    world.remove(ref)
    actions = world.step()
    assert [Ref.of(one.manifest) for one in actions if isinstance(one, Apply)] == [ref]
    world.settle()
    assert ref in world.children


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_deleted_workload_and_contract_come_back(role: str) -> None:
    world = settled()
    revision = next(iter(world.workloads(role)))
    for ref in [ref for ref in world.children if revision in ref.name]:
        world.remove(ref)
    world.settle()
    assert world.replicas(role) == {revision: world.body["spec"][role]["replicas"]}


@pytest.mark.parametrize("which", HANDS)
def test_an_edited_child_is_put_right_alone(which: str) -> None:
    world = settled()
    ref = next(ref for ref in world.children if which == f"{ref.kind} {ref.name}")
    world.children[ref]["metadata"]["ownerReferences"][0]["controller"] = False
    actions = world.step()
    assert [Ref.of(one.manifest) for one in actions if isinstance(one, Apply)] == [ref]
    assert world.plan().actions == ()


@pytest.mark.parametrize("which", HANDS)
def test_a_child_that_is_on_its_way_out_is_left_until_it_is_gone(which: str) -> None:
    world = settled()
    ref = next(ref for ref in world.children if which == f"{ref.kind} {ref.name}")
    world.children[ref]["metadata"]["deletionTimestamp"] = world.now
    world.children[ref]["metadata"]["ownerReferences"][0]["controller"] = False
    assert [one for one in world.plan().actions if isinstance(one, Apply | Delete)] == []


def test_a_contract_outlives_its_last_pod() -> None:
    """Pods that start read it; one that ends may be started again by its kubelet."""
    world = settled()
    former = {role: next(iter(world.replicas(role))) for role in ("prefill", "decode")}
    world.change(engine={"image": "sglang:2"})
    seen = 0
    for _ in range(30):
        world.step()
        maps = " ".join(ref.name for ref in world.children if ref.kind == "ConfigMap")
        for role, revision in former.items():
            if revision in world.replicas(role) or any(pod.revision == revision for pod in world.pods):
                seen += 1
                assert revision in maps
        world.run()
    assert seen > 6
    assert all(revision not in maps for revision in former.values())


def test_a_stranger_among_the_children_goes() -> None:
    world = settled()
    ref = Ref("v1", "Service", "glm-former")
    world.children[ref] = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "glm-former", "uid": "u-x", "labels": names.labels("glm")},
    }
    assert [one for one in world.step() if isinstance(one, Delete)] == [
        Delete(ref, "u-x", "the spec does not ask for it any more")
    ]


def test_a_refused_spec_leaves_everything_as_it_is() -> None:
    world = settled()
    before = dict(world.children)
    world.change(prefill={"contextParallel": 7}, decode={"image": "sglang:2"})
    told = world.settle()
    assert told < 5
    assert world.children == before
    assert world.said("Admitted") == ("False", "Invalid")
    assert "spec.prefill.contextParallel" in world.condition("Admitted")["message"]
    assert world.said("Available") == ("True", "Serving")
    assert [event.reason for event in world.events] == ["Serving", "Invalid"]
    world.change(prefill={"contextParallel": 8})
    world.settle()
    assert world.said("Admitted") == ("True", "Valid")


def test_groups_over_nodes_need_their_kind_in_the_cluster() -> None:
    world = World(prefill={"nodesPerGroup": 2, "contextParallel": 16})
    world.settle()
    assert "this cluster has no LeaderWorkerSet" in world.condition("Admitted")["message"]


def test_gates_are_opened_when_routers_have_the_pods() -> None:
    world = World()
    opened = []
    for _ in range(6):
        opened += [one for one in world.step() if isinstance(one, SetGate)]
        world.run()
    assert len(opened) == 5
    assert all(one.open for one in opened)


def test_without_routers_a_rollout_goes_by_the_containers() -> None:
    world = World(router={"replicas": 0})
    world.settle()
    world.change(decode={"image": "sglang:2"})
    world.settle()
    assert len(world.replicas("decode")) == 1
    assert world.said("Available") == ("False", "ScaledToZero")


def test_a_broken_image_stops_and_says_so_and_can_be_taken_back() -> None:
    world = settled()
    former = world.replicas("decode")
    world.change(decode={"image": "nosuch:1"})
    world.broken = {
        one.manifest["metadata"]["labels"][names.REVISION]
        for one in world.plan().actions
        if isinstance(one, Apply) and one.manifest["kind"] == "Deployment"
    }
    assert len(world.broken) == 1
    world.settle()
    status, reason = world.said("Progressing")
    assert (status, reason) == ("False", "Stuck")
    assert "no such image" in world.condition("Progressing")["message"]
    assert world.said("Available") == ("True", "Serving")
    assert world.said("DecodeReady")[0] == "False"
    assert world.said("Degraded")[0] == "True"
    assert {**world.replicas("decode"), **former} == world.replicas("decode")
    world.change(decode={"image": None})
    world.settle()
    assert world.replicas("decode") == former
    assert world.said("Degraded") == ("False", "Healthy")


def test_one_decode_without_surge_says_which_field_to_set() -> None:
    world = settled(decode={"replicas": 1}, rollout={"maxSurge": 0, "maxUnavailable": 1})
    world.change(cache={"dtype": "bfloat16"}, model={"contextLength": 32768})
    world.settle()
    assert world.said("Progressing") == ("False", "Stuck")
    assert "Set spec.rollout.maxSurge to 1" in world.condition("Progressing")["message"]
    world.change(rollout={"maxSurge": 1})
    world.settle()
    assert world.said("Progressing") == ("False", "Complete")


def test_a_refusal_is_told_and_the_rest_goes_on() -> None:
    world = settled()
    world.refusals[Ref("v1", "Service", "glm")] = 'exceeded quota: "few"'
    world.change(decode={"image": "sglang:2"})
    world.settle()
    assert "exceeded quota" in world.condition("Degraded")["message"]
    assert len(world.replicas("decode")) == 1
    world.refusals.clear()
    world.settle()
    assert world.said("Degraded") == ("False", "Healthy")


def test_an_autoscaler_of_prefill_owns_its_field() -> None:
    world = settled()
    world.change(autoscaling={"prefill": {"external": True, "maxReplicas": 9}})
    actions = [one for one in world.step() if isinstance(one, Apply)]
    role = [one for one in actions if one.manifest["kind"] == "SharedKVRole"]
    assert [one.manager for one in role] == [names.SEED, names.MANAGER]
    assert role[0].manifest["spec"] == {"replicas": 2}
    assert role[1].manifest["spec"] == {}
    world.settle()
    world.child("SharedKVRole", "glm-prefill")["spec"]["replicas"] = 5
    world.settle()
    assert sum(world.replicas("prefill").values()) == 5
    assert world.plan().actions == ()
    # Off again: the spec's figure holds.
    world.change(autoscaling=None)
    world.settle()
    assert sum(world.replicas("prefill").values()) == 2
    # And on: nothing is scaled by that.
    world.child("SharedKVRole", "glm-prefill")["spec"]["replicas"] = 2
    world.change(autoscaling={"prefill": {"external": True, "maxReplicas": 9}}, prefill={"replicas": 7})
    world.settle()
    assert sum(world.replicas("prefill").values()) == 2


def test_with_an_autoscaler_a_new_deployment_begins_with_the_specs_figure() -> None:
    world = settled(autoscaling={"prefill": {"external": True, "maxReplicas": 9}}, prefill={"replicas": 3})
    assert world.child("SharedKVRole", "glm-prefill")["spec"]["replicas"] == 3
    assert sum(world.replicas("prefill").values()) == 3


def test_an_autoscalers_object_deleted_by_hand_comes_back_with_what_runs() -> None:
    world = settled(autoscaling={"prefill": {"external": True, "maxReplicas": 9}}, prefill={"replicas": 1})
    role = next(ref for ref in world.children if ref.kind == "SharedKVRole")
    world.children[role]["spec"]["replicas"] = 5
    world.settle()
    world.remove(role)
    for _ in range(20):
        world.step()
        world.run()
        assert sum(world.replicas("prefill").values()) == 5
    assert world.children[role]["spec"]["replicas"] == 5


def test_old_workloads_are_scaled_by_a_manager_of_their_own() -> None:
    world = settled()
    world.change(decode={"image": "sglang:2"})
    seen = []
    for _ in range(30):
        seen += [one for one in world.step() if isinstance(one, Apply) and one.manager == names.SCALE]
        world.run()
    assert len(seen) == 3
    for one in seen:
        assert set(one.manifest) == {"apiVersion", "kind", "metadata", "spec"}
        assert set(one.manifest["spec"]) == {"replicas"}
        assert set(one.manifest["metadata"]) == {"name", "namespace", "uid"}


@pytest.mark.parametrize("label", [names.ROLE, names.REVISION, names.WIRE_HASH])
@pytest.mark.parametrize("change", [{"decode": {"image": "sglang:2"}}, {"cache": {"dtype": "bfloat16"}}])
def test_an_old_workload_that_lost_a_label_is_still_known_by_its_pods(
    change: dict[str, Any], label: str
) -> None:
    world = settled()
    [old] = world.workloads("decode").values()
    world.change(**change)
    world.step()
    world.run()
    expected = world.plan().actions
    assert old["spec"]["replicas"] == 3
    del old["metadata"]["labels"][label]
    # Otherwise it is a thing that nobody wants, or one that serves nothing, and all of its pods end at once.
    assert world.plan().actions == expected


def test_a_status_is_written_only_when_it_says_something_else() -> None:
    world = settled()
    writes = 0
    world.change(decode={"image": "sglang:2"})
    for _ in range(30):
        writes += sum(isinstance(one, WriteStatus) for one in [*world.step(), *world.step()])
        assert not any(isinstance(one, WriteStatus) for one in world.plan().actions)
        world.run()
    assert writes < 25


def test_names_of_63_characters() -> None:
    world = World()
    world.body["metadata"]["name"] = "n" * 63
    for _ in range(8):
        for action in world.plan().actions:
            if isinstance(action, Apply):
                assert len(action.manifest["metadata"]["name"]) <= 63
                world.carry_out(action)
        world.run()
    assert sum(world.replicas("decode").values()) == 3


def test_events_are_told_once() -> None:
    world = settled()
    world.change(decode={"image": "sglang:2"})
    world.settle()
    told = [(event.kind, event.reason) for event in world.events]
    assert told == [("Normal", "Serving"), ("Normal", "NewRevision")]
    assert isinstance(world.events[1], Event)
