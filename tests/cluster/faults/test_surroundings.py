"""Faults of what the operator stands on: its process, its rivals, the API server, nodes, clocks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.cluster.faults.stack import FLAGS, Stack, behaves, quiet, spec, until_quiet, written
from tests.cluster.faults.test_rollouts import SLOW, WIRE
from tests.cluster.harness.api import PLAIT, Api
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.fake_nodes import FakeNodes
from tests.cluster.harness.operators import Operators
from tests.cluster.harness.processes import Process
from tests.cluster.harness.waiting import until

Make = Callable[..., Stack]


def test_of_two_operators_one_works_and_the_other_takes_over(operators: Operators, stack: Make) -> None:
    first, second = operators.operator(*FLAGS, name="first"), operators.operator(*FLAGS, name="second")
    first.start()
    first.await_log("working with")
    second.start()
    one = stack(spec(prefill=SLOW, decode=SLOW))
    assert not written(second), "a standby writes nothing"
    one.change(**WIRE)
    until(lambda: len(one.workloads()) == 4, "old and new side by side", seconds=30, every=0.01)
    first.kill()
    one.settle()
    one.keeps(prefill=2, decode=3)
    assert written(second)
    until_quiet(second)


@pytest.mark.full
def test_a_leader_that_slept_writes_nothing_when_it_wakes(operators: Operators, stack: Make) -> None:
    first, second = operators.operator(*FLAGS, name="first"), operators.operator(*FLAGS, name="second")
    first.start()
    first.await_log("working with")
    one = stack(spec(prefill=SLOW, decode=SLOW))
    second.start()
    until_quiet(first)
    first.freeze()
    one.change(**WIRE)
    second.await_log("working with")
    until(lambda: len(one.workloads()) == 4, "the second has taken over", seconds=30, every=0.01)
    first.thaw()
    until(lambda: not first.alive(), "the first has ended itself", seconds=20)
    assert "nothing" in first.log_text() or "the lead is lost" in first.log_text()
    one.settle()
    one.keeps(prefill=2, decode=3)
    until_quiet(second)


def test_a_leader_that_is_told_to_go_makes_way_at_once(operators: Operators, stack: Make) -> None:
    # A term so long that only a Lease given back explains a quick successor.
    flags = ("--lease-seconds=120",)
    first, second = operators.operator(*flags, name="first"), operators.operator(*flags, name="second")
    first.start()
    first.await_log("working with")
    second.start()
    one = stack(spec())
    assert first.terminate(seconds=15) == 0
    second.await_log("working with", seconds=30)
    one.change(decode={"replicas": 2})
    one.settle()


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_api_server_restarts_in_the_middle_of_a_rollout(
    plane: Cluster, operators: Operators, stack: Make
) -> None:
    # A term that outlives the restart: an operator that loses the lead ends, and its pod begins anew.
    operator = operators.operator("--lease-seconds=30")
    operator.start()
    one = stack(spec(prefill=SLOW, decode=SLOW))
    one.change(**WIRE)
    until(lambda: len(one.workloads()) == 4, "old and new side by side", seconds=30, every=0.01)
    plane.plane.restart("kube-apiserver")
    one.settle(seconds=180)
    one.keeps(prefill=2, decode=3)
    assert operator.alive()
    until_quiet(operator, seconds=60)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_watches_that_are_too_far_behind_begin_anew_and_miss_nothing(
    plane: Cluster, operators: Operators, stack: Make, api: Api, namespace: str
) -> None:
    operator = operators.operator("--lease-seconds=60")
    operator.start()
    one = stack(spec())
    until_quiet(operator)
    operator.freeze()
    # While it sleeps: a child goes, the spec changes, and everything that its watches could go on from.
    api.delete("v1", "Service", "demo-prefill", namespace)
    one.change(decode={"replicas": 2})
    for number in range(50):
        api.patch("v1", "Node", "fault-0", "", {"metadata": {"annotations": {"n": str(number)}}})
    plane.plane.compact()
    plane.plane.restart("kube-apiserver")
    operator.thaw()
    until(lambda: api.get("v1", "Service", "demo-prefill", namespace), "the Service is back", seconds=120)
    one.settle(seconds=120)
    until_quiet(operator, seconds=60)


@pytest.mark.full
def test_a_lost_node(operator: Process, stack: Make, room: FakeNodes, api: Api) -> None:
    one = stack(spec())
    (pod, *_) = one.pods("prefill")
    node = pod["spec"]["nodeName"]
    room.remove(api, node)
    api.delete("v1", "Pod", pod["metadata"]["name"], one.namespace, grace=0)
    # Its replacement may serve before anybody looks.
    until(lambda: one.capacity.least["prefill"] < 2, "a group less", seconds=30)
    one.settle(seconds=120)
    assert all(p["spec"]["nodeName"] != node for p in one.pods())
    until_quiet(operator)
    room.add(api, node)


@pytest.mark.full
def test_pods_on_a_silent_node_that_never_end_do_not_hold_up_a_rollout_below_its_budget(
    operator: Process, stack: Make
) -> None:
    one = stack(spec(decode=behaves("runs", **{"ends-after": "5s"})))
    one.change(decode={"image": "sglang:v0.5.17-b"})
    one.settle(seconds=150)
    one.keeps(prefill=2, decode=3)
    assert one.capacity.most["decode"] <= 4, "a pod that ends slowly holds its GPU"


@pytest.mark.full
@pytest.mark.parametrize("hours", [-5, 5])
def test_an_operator_whose_clock_is_wrong(operators: Operators, stack: Make, api: Api, hours: int) -> None:
    clock = {"PYTHONPATH": str(Path(__file__).with_name("skew")), "SKEW_HOURS": str(hours)}
    operator = operators.operator(*FLAGS, environment=clock)
    operator.start()
    # Draining takes its time, and no more than that.
    one = stack(spec(prefill=SLOW, decode=SLOW, rollout={"drainSeconds": 5}))
    assert "its time counts" in operator.log_text()
    one.change(**WIRE)
    one.settle()
    one.keeps(prefill=2, decode=3)
    until_quiet(operator)
    assert not quiet(operator, 4)
    times = [c["lastTransitionTime"] for c in one.body()["status"]["conditions"]]
    made = one.body()["metadata"]["creationTimestamp"]
    ours = datetime.now(UTC)
    assert all(abs((datetime.fromisoformat(t) - ours).total_seconds()) < 3600 for t in [*times, made])
    one.delete()
    api.until_gone(PLAIT, "SharedKVDeployment", "demo", one.namespace)
