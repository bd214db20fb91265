"""Rollouts that are disturbed: each ends where it should, or says why not, and none costs capacity."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.cluster.faults.stack import FLAGS, Json, Stack, behaves, crash, quiet, spec, until_quiet, written
from tests.cluster.harness.api import PLAIT, Api
from tests.cluster.harness.operators import Operators
from tests.cluster.harness.processes import Process
from tests.cluster.harness.waiting import until

from plait_operator.names import INSTANCE

Make = Callable[..., Stack]

SLOW = behaves("slow", delay="700ms")
# Another wire contract: both roles roll, in lockstep.
WIRE: Json = {"cache": {"dtype": "bfloat16"}}
# One role's own change.
IMAGE: Json = {"decode": {"image": "sglang:v0.5.17-b"}}


def steps(one: Stack) -> Json:
    """What the operator has decided so far: the replicas of every workload."""
    return {w["metadata"]["name"]: w["spec"]["replicas"] for w in one.workloads()}


def test_both_roles_roll_in_lockstep_within_their_budgets(operator: Process, stack: Make) -> None:
    one = stack(spec(prefill=SLOW, decode=SLOW))
    before = one.revisions()
    one.change(**WIRE)
    one.settle()
    after = one.revisions()
    assert before["prefill"] != after["prefill"]
    assert before["decode"] != after["decode"]
    one.keeps(prefill=2, decode=3)
    assert (one.capacity.most["prefill"], one.capacity.most["decode"]) == (3, 4)
    until_quiet(operator)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("change", [WIRE, IMAGE], ids=["both-roles", "one-role"])
def test_an_operator_killed_at_every_step(operator: Process, stack: Make, change: Json) -> None:
    one = stack(spec(prefill=SLOW, decode=SLOW))
    until_quiet(operator)
    one.change(**change)
    last, kills = steps(one), 0

    def over() -> bool:
        body, found = one.body(), one.condition("Progressing")
        fresh = found.get("observedGeneration") == body["metadata"]["generation"]
        return fresh and found.get("status") == "False"

    for _ in range(40):
        # Killed the moment a decision is seen, before whatever would have come next.
        now = last

        def moved(last: Json = last) -> bool:
            nonlocal now
            now = steps(one)
            return now != last or over()

        until(moved, "the next step", seconds=60, every=0.01, why_not=one.told)
        if now == last:
            break
        crash(operator, one.api, one.namespace)
        kills += 1
        last = now
    one.settle()
    assert kills >= (6 if change is WIRE else 3)
    one.keeps(prefill=2, decode=3)
    until_quiet(operator)


def test_an_operator_killed_in_the_middle(operator: Process, stack: Make) -> None:
    one = stack(spec(prefill=SLOW, decode=SLOW))
    one.change(**WIRE)
    until(lambda: len(one.workloads()) == 4, "old and new side by side", seconds=30, every=0.01)
    crash(operator, one.api, one.namespace)
    one.settle()
    one.keeps(prefill=2, decode=3)


def test_a_revert_in_the_middle(operator: Process, stack: Make) -> None:
    one = stack(spec(prefill=SLOW, decode=SLOW))
    before = one.revisions()
    one.change(**WIRE)
    until(lambda: one.capacity.most["decode"] == 4, "the first new pod", seconds=30, every=0.01)
    one.change(cache={"dtype": "fp8_e4m3"})
    one.settle()
    assert one.revisions() == before
    one.keeps(prefill=2, decode=3)
    until_quiet(operator)


@pytest.mark.full
def test_one_change_after_the_other(operator: Process, stack: Make) -> None:
    one = stack(spec(prefill=SLOW, decode=SLOW))
    for change in (
        WIRE,
        IMAGE,
        {"cache": {"dtype": "fp8_e4m3"}},
        {"engine": {"env": [{"name": "A", "value": "1"}]}},
    ):
        one.change(**change)
        until(
            lambda: one.condition("Progressing").get("status") == "True", "it rolls", seconds=30, every=0.01
        )
    one.settle()
    one.keeps(prefill=2, decode=3)
    until_quiet(operator)


@pytest.mark.full
def test_to_zero_and_back(operator: Process, stack: Make) -> None:
    one = stack(spec())
    one.change(prefill={"replicas": 0}, decode={"replicas": 0})
    one.settle()
    assert one.condition("Available")["status"] == "False"
    assert one.condition("Degraded")["status"] == "False", "as it was asked for"
    until_quiet(operator)
    assert not quiet(operator, 3)
    one.change(prefill={"replicas": 1}, decode={"replicas": 2})
    one.settle()
    until_quiet(operator)


@pytest.mark.full
def test_scaled_while_it_rolls(operator: Process, stack: Make) -> None:
    one = stack(spec(prefill=SLOW, decode=SLOW))
    one.change(**WIRE)
    until(lambda: len(one.workloads()) == 4, "old and new side by side", seconds=30, every=0.01)
    one.change(decode={"replicas": 5})
    one.settle()
    one.keeps(prefill=2, decode=3)


# Targets that never come up: the old ones go on, and the status says why.


@pytest.mark.full
@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (behaves("unready"), "not ready"),
        (behaves("image-pull"), "ImagePullBackOff"),
        (behaves("crash"), "exit code 1"),
        (behaves("preflight-failed", preflight="no device mlx5_0"), "no device mlx5_0"),
    ],
    ids=["never-ready", "image-pull", "crash", "preflight"],
)
def test_a_revision_that_never_works(operator: Process, stack: Make, broken: Json, says: str) -> None:
    one = stack(spec())
    before = one.revisions()
    one.change(decode=broken)
    until(lambda: len(one.pods("decode")) == 4, "a pod of the broken revision", seconds=30)
    if says != "not ready":
        one.until_condition("DecodeReady", "False", text=says, seconds=30)
    else:
        one.until_condition("DecodeReady", "False", seconds=30)
    assert one.condition("Available")["status"] != "Unknown"
    until_quiet(operator)
    assert not quiet(operator, 5), "a status that flaps"
    one.keeps(prefill=2, decode=3)
    one.change(decode={"podTemplate": None})
    one.settle()
    assert one.revisions() == before
    one.keeps(prefill=2, decode=3)


@pytest.mark.full
def test_a_quota_that_refuses_pods(operator: Process, stack: Make, api: Api, namespace: str) -> None:
    one = stack(spec())
    api.create(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "pods", "namespace": namespace},
            "spec": {"hard": {"pods": "5"}},
        }
    )
    one.change(**IMAGE)
    told = until(
        lambda: next((c for c in one.body()["status"]["conditions"] if "quota" in c["message"]), None),
        "a condition that names the quota",
        seconds=60,
        why_not=one.told,
    )
    assert told["type"] in ("DecodeReady", "Progressing", "Degraded")
    one.keeps(prefill=2, decode=3)
    until_quiet(operator)
    assert not quiet(operator, 5)
    api.delete("v1", "ResourceQuota", "pods", namespace)
    one.settle(seconds=150)
    one.keeps(prefill=2, decode=3)


@pytest.mark.full
def test_a_quota_that_refuses_children(operator: Process, stack: Make, api: Api, namespace: str) -> None:
    quota = {"metadata": {"name": "services", "namespace": namespace}, "spec": {"hard": {"services": "0"}}}
    api.create({"apiVersion": "v1", "kind": "ResourceQuota", **quota})
    one = stack(spec(), settled=False)
    until(
        lambda: "exceeded quota" in str((one.body().get("status") or {}).get("conditions")),
        "a condition that names the quota",
        seconds=60,
        why_not=one.told,
    )
    start = written(operator)
    until(lambda: quiet(operator, 5).total() <= 6, "fewer and fewer attempts", seconds=60)
    assert (written(operator) - start)["SharedKVDeployment", "status"] <= 1
    api.delete("v1", "ResourceQuota", "services", namespace)
    one.settle(seconds=150)


# The end.


def test_deleted_in_the_middle_of_a_rollout(operator: Process, stack: Make, api: Api, namespace: str) -> None:
    one = stack(spec(prefill=SLOW, decode=SLOW))
    one.change(**WIRE)
    until(lambda: len(one.workloads()) == 4, "old and new side by side", seconds=30, every=0.01)
    one.delete()
    api.until_gone(PLAIT, "SharedKVDeployment", "demo", namespace)
    until(lambda: not one.pods() and not one.workloads(), "all of it gone", seconds=60)
    selector = f"{INSTANCE}=demo"
    for version, kind in (("v1", "Service"), ("v1", "ConfigMap"), ("networking.k8s.io/v1", "NetworkPolicy")):
        until(
            lambda v=version, k=kind: not api.list(v, k, namespace, selector=selector),
            f"no {kind}",
            seconds=60,
        )
    until_quiet(operator)


@pytest.mark.full
def test_deleted_and_made_again_at_once(operator: Process, stack: Make, api: Api, namespace: str) -> None:
    one = stack(spec())
    uid = one.body()["metadata"]["uid"]
    one.delete()
    api.until_gone(PLAIT, "SharedKVDeployment", "demo", namespace)
    api.create(
        {
            "apiVersion": PLAIT,
            "kind": "SharedKVDeployment",
            "metadata": {"name": "demo", "namespace": namespace},
            "spec": spec(decode={"replicas": 1}),
        }
    )
    one.settle(seconds=120)
    assert one.body()["metadata"]["uid"] != uid
    until_quiet(operator)


@pytest.mark.full
def test_deleted_while_no_operator_runs(operator: Process, stack: Make, api: Api, namespace: str) -> None:
    one = stack(spec())
    operator.kill()
    one.delete()
    until(lambda: one.body()["metadata"].get("deletionTimestamp"), "held by its finalizer", seconds=10)
    assert len(one.pods()) == 5
    operator.start()
    api.until_gone(PLAIT, "SharedKVDeployment", "demo", namespace)
    until(lambda: not one.pods(), "no pods", seconds=60)


@pytest.mark.full
def test_autoscaling_comes_and_goes(operators: Operators, stack: Make, api: Api, namespace: str) -> None:
    operator = operators.operator(*FLAGS)
    operator.start()
    one = stack(spec())
    metrics = [
        {"type": "External", "external": {"metric": {"name": "q"}, "target": {"type": "Value", "value": "1"}}}
    ]
    scaling = {"minReplicas": 1, "maxReplicas": 3, "metrics": metrics}
    one.change(autoscaling={"prefill": scaling, "decode": scaling})
    kind = ("autoscaling/v2", "HorizontalPodAutoscaler")
    until(lambda: len(api.list(*kind, namespace)) == 2, "two autoscalers", seconds=30)
    role = api.get(PLAIT, "SharedKVRole", "demo-prefill", namespace)
    assert role is not None
    assert role["spec"]["replicas"] == 2, "scaling begins where the spec was"
    api.patch(
        PLAIT, "SharedKVRole", "demo-prefill", namespace, {"spec": {"replicas": 3}}, subresource="scale"
    )
    until(lambda: one.capacity.serving()["prefill"] == 3, "a third group", seconds=30)
    until_quiet(operator)
    assert not quiet(operator, 4), "the operator and the autoscaler do not fight"
    one.change(autoscaling=None)
    until(lambda: not api.list(*kind, namespace), "no autoscalers", seconds=30)
    one.settle()
    until_quiet(operator)
