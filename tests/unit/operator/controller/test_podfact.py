"""Pods as facts: what counts, and that texts which change while nothing happens come out the same."""

from __future__ import annotations

from typing import Any

import pytest

from plait_operator.controller.podfact import is_held, pod_fact
from plait_operator.names import ADMITTED_GATE, REVISION, ROLE


def pod(**status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "p-1",
            "uid": "u-1",
            "namespace": "ns",
            "labels": {ROLE: "decode", REVISION: "abcd0123"},
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"nodeName": "n1"},
        "status": status,
    }


def condition(kind: str, status: str, **more: str) -> dict[str, str]:
    return {"type": kind, "status": status, "lastTransitionTime": "2026-01-01T00:01:00Z", **more}


def test_a_ready_pod() -> None:
    fact = pod_fact(
        pod(
            phase="Running",
            podIP="10.0.0.1",
            conditions=[
                condition("Ready", "True"),
                condition("ContainersReady", "True"),
                condition(ADMITTED_GATE, "True"),
            ],
            containerStatuses=[{"name": "engine", "restartCount": 2, "state": {"running": {}}}],
        )
    )
    assert fact._asdict() | {} == {
        "name": "p-1",
        "uid": "u-1",
        "role": "decode",
        "revision": "abcd0123",
        "ip": "10.0.0.1",
        "node": "n1",
        "phase": "Running",
        "ready": True,
        "containers_ready": True,
        "admitted": True,
        "deleting": False,
        "unschedulable": "",
        "waiting": "",
        "restarts": 2,
        "preflight": "",
        "preflight_failed": False,
        "terminated": "",
        "ready_since": "2026-01-01T00:01:00Z",
        "created": "2026-01-01T00:00:00Z",
        "group": "",
        "worker": 0,
    }


def test_a_pod_without_a_status_is_nothing_yet() -> None:
    bare = pod()
    del bare["status"], bare["spec"]
    fact = pod_fact(bare)
    assert (fact.phase, fact.ready, fact.admitted, fact.unschedulable, fact.waiting) == (
        "",
        False,
        None,
        "",
        "",
    )


@pytest.mark.parametrize(("status", "admitted"), [("True", True), ("False", False), (None, None)])
def test_the_gate_has_three_states(status: str | None, admitted: bool | None) -> None:
    conditions = [] if status is None else [condition(ADMITTED_GATE, status)]
    assert pod_fact(pod(conditions=conditions)).admitted is admitted


def test_why_it_is_not_scheduled() -> None:
    told = [condition("PodScheduled", "False", reason="Unschedulable", message="0/3 nodes: no gpu")]
    assert pod_fact(pod(conditions=told)).unschedulable == "0/3 nodes: no gpu"


def waiting(reason: str, message: str = "", **more: Any) -> dict[str, Any]:
    return pod(
        containerStatuses=[
            {"name": "engine", "state": {"waiting": {"reason": reason, "message": message}}, **more}
        ]
    )


@pytest.mark.parametrize("reason", ["ContainerCreating", "PodInitializing", ""])
def test_a_start_is_no_trouble(reason: str) -> None:
    assert pod_fact(waiting(reason)).waiting == ""


def test_the_two_faces_of_a_failed_pull_are_one() -> None:
    first = waiting("ErrImagePull", 'rpc error: image "x": not found')
    then = waiting(
        "ImagePullBackOff", 'Back-off pulling image "x": ErrImagePull: rpc error: image "x": not found'
    )
    assert pod_fact(first).waiting == pod_fact(then).waiting
    assert "not found" in pod_fact(first).waiting


def test_a_crash_loop_tells_why_it_ended_and_not_how_long_it_waits() -> None:
    def crashing(seconds: int) -> dict[str, Any]:
        return waiting(
            "CrashLoopBackOff",
            f"back-off {seconds}s restarting failed container",
            lastState={"terminated": {"exitCode": 3, "reason": "Error"}},
        )

    assert pod_fact(crashing(10)).waiting == pod_fact(crashing(160)).waiting
    assert pod_fact(crashing(10)).waiting == "CrashLoopBackOff: engine: Error with exit code 3"


def test_preflight_speaks_by_its_last_words() -> None:
    ended = {"terminated": {"exitCode": 1, "message": '{"ok":false}'}}
    fact = pod_fact(pod(initContainerStatuses=[{"name": "preflight", "state": ended}]))
    assert (fact.preflight, fact.preflight_failed) == ('{"ok":false}', True)


def test_preflight_that_starts_again_keeps_its_last_words() -> None:
    ended = {"terminated": {"exitCode": 1, "message": "no device"}}
    told = [{"name": "preflight", "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ended}]
    fact = pod_fact(pod(initContainerStatuses=told))
    assert (fact.preflight, fact.preflight_failed) == ("no device", True)


def test_other_containers_that_ended_are_not_preflight() -> None:
    ended = {"terminated": {"exitCode": 1, "message": "cannot copy"}}
    assert pod_fact(pod(initContainerStatuses=[{"name": "runtime", "state": ended}])).preflight == ""


def test_the_last_words_of_a_job() -> None:
    ended = {"terminated": {"exitCode": 0, "message": '{"hidden_size": 1}'}}
    fact = pod_fact(pod(phase="Succeeded", containerStatuses=[{"name": "inspect", "state": ended}]))
    assert (fact.phase, fact.terminated) == ("Succeeded", '{"hidden_size": 1}')


def test_a_pod_of_a_group_knows_its_place() -> None:
    member = pod()
    member["metadata"]["labels"] |= {
        "leaderworkerset.sigs.k8s.io/group-index": "2",
        "leaderworkerset.sigs.k8s.io/worker-index": "1",
    }
    fact = pod_fact(member)
    assert (fact.group, fact.worker) == ("2", 1)


def test_long_texts_are_cut() -> None:
    assert len(pod_fact(waiting("CreateContainerError", "x" * 5000)).waiting) == 400


def owner(api_version: str, kind: str, *, controller: bool | None = True) -> dict[str, Any]:
    told = {"apiVersion": api_version, "kind": kind, "name": "o", "uid": "u-o"}
    return told if controller is None else {**told, "controller": controller}


REPLICA_SET = owner("apps/v1", "ReplicaSet")


@pytest.mark.parametrize(
    ("owners", "held"),
    [
        (None, False),
        ([], False),
        ([REPLICA_SET], True),
        # Leaders of a LeaderWorkerSet's groups, and the rest of each group.
        ([owner("apps/v1", "StatefulSet")], True),
        ([owner("batch/v1", "Job")], True),
        ([owner("v1", "Node", controller=None), REPLICA_SET], True),
        ([owner("apps/v1", "ReplicaSet", controller=None)], False),
        ([owner("apps/v1", "ReplicaSet", controller=False)], False),
        ([owner("apps/v1", "DaemonSet")], False),
        ([owner("v1", "Node")], False),
        ([owner("example.org/v1", "ReplicaSet")], False),
        ([owner("apps/v1", "ReplicaSet", controller=False), owner("example.org/v1", "Canary")], False),
    ],
)
def test_a_pod_counts_only_where_a_controller_of_workloads_or_jobs_holds_it(
    owners: list[dict[str, Any]] | None, held: bool
) -> None:
    one = pod()
    if owners is not None:
        one["metadata"]["ownerReferences"] = owners
    assert is_held(one) is held
