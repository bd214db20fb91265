"""Why a role is not ready, by what its pods and its workload tell."""

from __future__ import annotations

import pytest
from tests.unit.operator.status.cases import (
    FAILED,
    NEW,
    NONE_READY,
    OLD,
    READY,
    VIEW,
    conditions,
    observed,
    pod,
    routers,
    starting,
    told,
    workload,
)

from plait_operator import names
from plait_operator.api.reasons import Reason
from plait_operator.observed import PodFact, Ref

ONE = VIEW._replace(prefill=READY._replace(wanted=1, pods=1, ready=0, serving=0, updated=1, updated_ready=0))
QUOTA = (
    'pods "glm-prefill-1111bbbb-7d5f9-x8k2p" is forbidden: exceeded quota: gpus, requested: '
    "requests.nvidia.com/gpu=8, used: requests.nvidia.com/gpu=16, limited: requests.nvidia.com/gpu=16"
)


@pytest.mark.parametrize(
    ("pods", "reason", "words", "lasting"),
    [
        (
            [
                starting(
                    unschedulable="0/5 nodes are available: 3 Insufficient nvidia.com/gpu, 2 node(s) had "
                    "untolerated taint {x: y}. preemption: 0/5 nodes are available: 5 No preemption victims."
                )
            ],
            Reason.UNSCHEDULABLE,
            "pod p0: Insufficient nvidia.com/gpu; node(s) had untolerated taint {x: y}",
            False,
        ),
        ([starting(unschedulable="unschedulable")], Reason.UNSCHEDULABLE, "pod p0: unschedulable", False),
        (
            [starting(waiting='ImagePullBackOff: engine: image "x" not found')],
            Reason.IMAGE_PULL_FAILED,
            'pod p0: ImagePullBackOff: engine: image "x" not found',
            True,
        ),
        (
            [starting(waiting="CreateContainerConfigError: engine: secret hub not found")],
            Reason.CONTAINER_REFUSED,
            "secret hub not found",
            True,
        ),
        (
            [starting(waiting="InvalidImageName: engine: x y")],
            Reason.CONTAINER_REFUSED,
            "InvalidImageName",
            True,
        ),
        (
            [starting(restarts=1, terminated="OOMKilled with exit code 137")],
            Reason.RESTARTING,
            "OOMKilled",
            False,
        ),
        (
            [starting(restarts=3, terminated="this engine is refused")],
            Reason.CRASH_LOOPING,
            "pod p0: ended: this engine is refused",
            True,
        ),
        ([starting(restarts=9)], Reason.CRASH_LOOPING, "ended without a word", True),
        (
            [starting(preflight=FAILED, preflight_failed=True, restarts=4)],
            Reason.PREFLIGHT_FAILED,
            "rdma: mlx5_9 is not there. Fix: one of mlx5_0, mlx5_1",
            True,
        ),
        (
            [starting(preflight="Killed", preflight_failed=True)],
            Reason.PREFLIGHT_FAILED,
            "no verdict: not a verdict",
            True,
        ),
        ([starting(preflight_failed=True)], Reason.PREFLIGHT_FAILED, "the message is empty", True),
        ([pod(ready=False, admitted=False)], Reason.WAITING_FOR_ROUTERS, "no quorum of routers", False),
        ([pod(ready=False, admitted=None)], Reason.WAITING_FOR_ROUTERS, "no quorum of routers", False),
        ([starting()], Reason.NOT_READY, "0 of 1 pods of revision 1111bbbb are ready", False),
        # Pods that are not the newest revision's, or on their way out, are no reason.
        ([starting(revision=OLD, waiting="ImagePullBackOff: engine")], Reason.NOT_READY, "0 of 1", False),
        ([starting(deleting=True, waiting="ImagePullBackOff: engine")], Reason.NOT_READY, "0 of 1", False),
        ([starting(phase="Failed", restarts=5, terminated="Evicted")], Reason.NOT_READY, "0 of 1", False),
        ([pod(ready=False, admitted=None, worker=1, group="0")], Reason.NOT_READY, "0 of 1", False),
        # The worst is named first, all are told.
        (
            [
                starting(unschedulable="no room"),
                starting(name="p1", waiting="ImagePullBackOff: engine: gone"),
            ],
            Reason.IMAGE_PULL_FAILED,
            "pod p1: ImagePullBackOff: engine: gone; pod p0: no room",
            True,
        ),
        # The same trouble of many pods is told once.
        (
            [starting(name=f"p{i}", waiting="ImagePullBackOff: engine: gone") for i in range(2)],
            Reason.IMAGE_PULL_FAILED,
            "pod p0 and 1 more: ImagePullBackOff: engine: gone",
            True,
        ),
    ],
)
def test_why_a_role_is_not_ready(pods: list[PodFact], reason: Reason, words: str, lasting: bool) -> None:
    found = conditions(told(observed(*pods), ONE))
    ready = found["PrefillReady"]
    assert (ready.status, ready.reason) == ("False", reason)
    assert ready.message.startswith("0 of 1 pods of revision 1111bbbb are ready")
    assert words in ready.message
    degraded = found["Degraded"]
    assert (degraded.status, degraded.reason) == (("True", reason) if lasting else ("False", "Healthy"))
    assert reason.lasting is lasting
    halted = ("False", reason.value) if lasting else ("True", "Starting")
    assert (found["Progressing"].status, found["Progressing"].reason) == halted


def test_a_router_that_says_why_is_quoted() -> None:
    seen = observed(
        pod(ready=False, admitted=False), routers=routers(taken_in=False, trouble="it serves another model")
    )
    ready = conditions(told(seen, ONE))["PrefillReady"]
    assert ready.reason == "WaitingForRouters"
    assert ready.message.endswith("pod p0: it serves another model")


def test_a_router_pod_has_no_gate_and_its_own_troubles() -> None:
    view = VIEW._replace(router=NONE_READY._replace(revision=""))
    found = conditions(told(observed(pod("router", "r0", ready=False, admitted=None)), view))
    assert found["RouterReady"].reason == "NotReady"
    crash = starting("router", "r0", restarts=5, terminated="bad key file")
    found = conditions(told(observed(crash), view))
    assert found["RouterReady"].reason == "CrashLooping"
    assert found["Degraded"].message == "router: pod r0: ended: bad key file"


def test_a_quota_is_named_without_what_changes_at_every_try() -> None:
    found = conditions(told(observed(children=workload("prefill", failure=QUOTA)), ONE))
    assert found["PrefillReady"].reason == "PodsRefused"
    assert found["PrefillReady"].message.endswith(
        "Deployment glm-prefill-1111bbbb: pods is forbidden: exceeded quota: gpus, requested: "
        "requests.nvidia.com/gpu=8, limited: requests.nvidia.com/gpu=16"
    )
    assert found["Degraded"].reason == "PodsRefused"


@pytest.mark.parametrize(("role", "revision"), [("decode", NEW), ("prefill", OLD)])
def test_a_quota_of_another_workload_is_not_this_roles(role: str, revision: str) -> None:
    children = workload(role, revision=revision, failure=QUOTA)
    assert conditions(told(observed(children=children), ONE))["PrefillReady"].reason == "NotReady"


def test_a_refusal_of_the_api_server_is_told_once() -> None:
    ref = Ref("apps/v1", "Deployment", names.short("glm", "prefill", NEW))
    other = Ref("v1", "Service", "glm")
    seen = observed(refusals={ref: "denied by policy X", other: "port is taken"})
    found = conditions(told(seen, ONE))
    assert found["PrefillReady"].reason == "Refused"
    assert found["Degraded"].message == (
        "prefill: Deployment glm-prefill-1111bbbb: denied by policy X; Service glm: port is taken"
    )


def test_a_rollout_that_can_go_on_is_not_halted_by_one_pod() -> None:
    seen = observed(starting(waiting="ImagePullBackOff: engine: gone"))
    found = conditions(told(seen, ONE._replace(rolling=True)))
    assert (found["Progressing"].status, found["Progressing"].reason) == ("True", "RollingOut")
    assert found["Degraded"].reason == "ImagePullFailed"
