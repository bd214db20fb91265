"""Deployments, and LeaderWorkerSets for groups over nodes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.operator.children.engines import ROLES, container, env, known, value

from plait_operator import names
from plait_operator.children.context import Context
from plait_operator.children.revision import contract_map, revision, template
from plait_operator.children.workload import EXCLUSIVE, GROUP_KEY, LWS_NAME_LIMIT, workload

LONG = "a" * 63


def spanning(**prefill: Any) -> Context:
    return known(prefill={"nodesPerGroup": 2, **prefill})


@pytest.mark.parametrize("role", ROLES)
def test_one_deployment_per_role_and_revision(role: str) -> None:
    ctx = known()
    assert ctx.contract is not None
    digits = revision(ctx, role)
    made = workload(ctx, role, replicas=3)
    assert (made["apiVersion"], made["kind"]) == ("apps/v1", "Deployment")
    assert made["metadata"]["name"] == f"glm-{role}-{digits}"
    assert made["metadata"]["namespace"] == "serving"
    assert made["metadata"]["ownerReferences"][0]["name"] == "glm"
    assert made["spec"]["replicas"] == 3
    assert made["spec"]["revisionHistoryLimit"] == 0
    wire = ctx.contract.wire.hash[:16]
    assert made["metadata"]["labels"][names.WIRE_HASH] == wire
    assert made["metadata"]["labels"][names.REVISION] == digits


@pytest.mark.parametrize("role", ROLES)
def test_a_selector_picks_its_own_pods_alone(role: str) -> None:
    ctx = known()
    made = workload(ctx, role, replicas=1)
    selector = made["spec"]["selector"]["matchLabels"]
    assert selector == {
        "app.kubernetes.io/instance": "glm",
        "app.kubernetes.io/managed-by": "plait-operator",
        "plait.dev/role": role,
        "plait.dev/revision": revision(ctx, role),
    }
    assert selector.items() <= made["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize("role", ROLES)
def test_the_pods_are_the_template_with_the_revision(role: str) -> None:
    ctx = known()
    told = workload(ctx, role, replicas=1)["spec"]["template"]
    assert told["metadata"]["labels"].pop(names.REVISION) == revision(ctx, role)
    assert told == template(ctx, role)


def test_replicas_change_nothing_else() -> None:
    one, many = (workload(known(), "decode", replicas=n) for n in (0, 7))
    assert one["spec"].pop("replicas") == 0
    assert many["spec"].pop("replicas") == 7
    assert one == many


def test_it_does_not_give_up_before_an_engine_may_have_started() -> None:
    made = workload(known(), "prefill", replicas=1)["spec"]
    startup = container(made["template"]["spec"])["startupProbe"]
    assert made["progressDeadlineSeconds"] > startup["periodSeconds"] * startup["failureThreshold"]


def test_a_hand_edited_template_never_takes_a_serving_pod_first() -> None:
    told = workload(known(), "prefill", replicas=1)["spec"]["strategy"]
    assert told == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}


@pytest.mark.parametrize("role", ROLES)
def test_names_fit_however_long_the_deployments_is(role: str) -> None:
    long, other = (known(name=name) for name in (LONG, "a" * 62 + "b"))
    found = [workload(ctx, role, replicas=1)["metadata"]["name"] for ctx in (long, other)]
    found += [contract_map(ctx, role)["metadata"]["name"] for ctx in (long, other)]
    assert len(set(found)) == 4
    assert all(len(name) <= 63 for name in found)
    labels = workload(long, role, replicas=1)["spec"]["template"]["metadata"]["labels"]
    assert all(len(label) <= 63 for label in labels.values())


def test_a_group_over_nodes_is_a_leader_worker_set() -> None:
    ctx = spanning()
    made = workload(ctx, "prefill", replicas=2)
    assert (made["apiVersion"], made["kind"]) == ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
    assert made["spec"]["replicas"] == 2
    group = made["spec"]["leaderWorkerTemplate"]
    assert (group["size"], group["restartPolicy"]) == (2, "RecreateGroupOnPodRestart")
    assert workload(ctx, "decode", replicas=2)["kind"] == "Deployment"


def test_each_pod_of_a_group_has_its_share_and_its_number() -> None:
    group = workload(spanning(), "prefill", replicas=1)["spec"]["leaderWorkerTemplate"]
    for part in ("leaderTemplate", "workerTemplate"):
        engine = container(group[part]["spec"])
        assert engine["resources"]["limits"]["nvidia.com/gpu"] == "4"
        assert value(engine["command"], "--tp-size") == "8"
        assert value(engine["command"], "--node-rank") == "$(LWS_WORKER_INDEX)"
        assert env(engine)["PLAIT_LAYOUT"] == "shared"
        assert group[part]["metadata"]["labels"][names.REVISION] == revision(spanning(), "prefill")


def test_only_the_leader_is_asked_for_and_waits_for_the_router() -> None:
    group = workload(spanning(), "prefill", replicas=1)["spec"]["leaderWorkerTemplate"]
    leader, worker = (group[part]["spec"] for part in ("leaderTemplate", "workerTemplate"))
    assert leader["readinessGates"] == [{"conditionType": names.ADMITTED_GATE}]
    assert "readinessGates" not in worker
    assert [p["name"] for p in container(leader)["ports"]] == ["http", "bootstrap", "rendezvous"]
    assert [p["name"] for p in container(worker)["ports"]] == ["http"]


def test_a_worker_stays_until_its_leader_has_drained() -> None:
    group = workload(spanning(), "prefill", replicas=1)["spec"]["leaderWorkerTemplate"]
    shell, flag, line = container(group["workerTemplate"]["spec"])["lifecycle"]["preStop"]["exec"]["command"]
    assert (shell, flag) == ("/bin/sh", "-c")
    assert line.startswith("exec python3 -m plait.pod.drain ")
    assert line.endswith(" --url http://$LWS_LEADER_ADDRESS:30000")
    leader = container(group["leaderTemplate"]["spec"])["lifecycle"]["preStop"]["exec"]["command"]
    assert "--url" not in leader


def test_pods_of_a_group_wish_to_be_near_their_own() -> None:
    group = workload(spanning(), "prefill", replicas=1)["spec"]["leaderWorkerTemplate"]
    for part in ("leaderTemplate", "workerTemplate"):
        [near] = group[part]["spec"]["affinity"].values()
        terms = near["preferredDuringSchedulingIgnoredDuringExecution"]
        assert [t["podAffinityTerm"]["topologyKey"] for t in terms] == [
            "nvidia.com/gpu.clique",
            "topology.kubernetes.io/zone",
        ]
        assert all(t["podAffinityTerm"]["matchLabelKeys"] == [GROUP_KEY] for t in terms)


def test_ones_own_affinity_is_left_alone() -> None:
    mine = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}
    ctx = spanning(podTemplate={"spec": {"affinity": mine}})
    group = workload(ctx, "prefill", replicas=1)["spec"]["leaderWorkerTemplate"]
    assert group["leaderTemplate"]["spec"]["affinity"] == mine


def test_a_topology_of_its_own_is_told_to_the_set_and_not_to_pods() -> None:
    annotations = {EXCLUSIVE: "rack", "other": "stays"}
    ctx = spanning(podTemplate={"metadata": {"annotations": annotations}})
    made = workload(ctx, "prefill", replicas=1)
    assert made["metadata"]["annotations"] == {EXCLUSIVE: "rack"}
    for part in ("leaderTemplate", "workerTemplate"):
        told = made["spec"]["leaderWorkerTemplate"][part]["metadata"]["annotations"]
        assert told == {"other": "stays"}
    assert "annotations" not in workload(spanning(), "prefill", replicas=1)["metadata"]


def test_the_name_of_a_set_leaves_room_for_its_pods() -> None:
    ctx = known(name=LONG, prefill={"nodesPerGroup": 2})
    name = workload(ctx, "prefill", replicas=1)["metadata"]["name"]
    assert len(name) <= LWS_NAME_LIMIT
    assert name.endswith(f"prefill-{revision(ctx, 'prefill')}")
    # The longest label that its controller makes of it: the hash of a group's own set of workers.
    assert len(f"{name}-9999-0123456789") <= 63
