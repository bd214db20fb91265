"""Each condition, with the reason why."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.operator.status.cases import (
    FAILED,
    NEW,
    NONE_READY,
    OLD,
    READY,
    VIEW,
    conditions,
    deployment,
    observed,
    pod,
    starting,
    told,
)

from plait.contract.violation import Violation
from plait_operator.api.resource import SharedKVDeployment
from plait_operator.api.status import ConditionType
from plait_operator.observed import Observed, PodFact
from plait_operator.status import RoleView, View

ZERO = RoleView(revision=NEW)
BAD = Violation("spec.cache.pageSize", 32, "pages are 64 tokens", "64")
WAITS = VIEW._replace(prefill=NONE_READY)
ONE = VIEW._replace(prefill=READY._replace(wanted=1, pods=1, ready=0, serving=0, updated=1, updated_ready=0))


def reasons(seen: Observed | None = None, view: View = VIEW, **more: Any) -> dict[str, tuple[str, str]]:
    return {kind: (c.status, c.reason) for kind, c in conditions(told(seen, view, **more)).items()}


def test_all_is_well() -> None:
    assert reasons() == {
        "ModelInspected": ("True", "Known"),
        "Admitted": ("True", "Valid"),
        "PrefillReady": ("True", "Ready"),
        "DecodeReady": ("True", "Ready"),
        "TransferReady": ("True", "PreflightPassed"),
        "RouterReady": ("True", "Ready"),
        "Available": ("True", "Serving"),
        "Progressing": ("False", "Complete"),
        "Degraded": ("False", "Healthy"),
    }


def test_the_order_is_that_of_the_api() -> None:
    assert [c.type for c in told().conditions] == [kind.value for kind in ConditionType]


@pytest.mark.parametrize(
    ("view", "wanted"),
    [
        # The model and the spec.
        (
            VIEW._replace(inspect="running"),
            {
                "ModelInspected": ("False", "Inspecting"),
                "Admitted": ("Unknown", "NotChecked"),
                "Progressing": ("True", "Inspecting"),
                "Degraded": ("False", "Healthy"),
            },
        ),
        (
            VIEW._replace(inspect="failed", inspect_message="no config.json"),
            {
                "ModelInspected": ("False", "InspectFailed"),
                "Progressing": ("False", "InspectFailed"),
                "Degraded": ("True", "InspectFailed"),
            },
        ),
        (
            VIEW._replace(violations=(BAD,)),
            {
                "Admitted": ("False", "Invalid"),
                "PrefillReady": ("True", "Ready"),
                "Available": ("True", "Serving"),
                "Progressing": ("False", "Invalid"),
                "Degraded": ("True", "Invalid"),
            },
        ),
        # Nothing planned yet.
        (
            VIEW._replace(prefill=RoleView(wanted=2), decode=RoleView(wanted=2), inspect="running"),
            {
                "PrefillReady": ("Unknown", "NotPlanned"),
                "DecodeReady": ("Unknown", "NotPlanned"),
                "TransferReady": ("Unknown", "NotPlanned"),
                "Available": ("False", "NoPrefill"),
            },
        ),
        # Pods are missing.
        (
            VIEW._replace(prefill=RoleView(wanted=2, revision=NEW)),
            {
                "PrefillReady": ("False", "Creating"),
                "Available": ("False", "NoPrefill"),
                "Progressing": ("True", "Scaling"),
            },
        ),
        (
            VIEW._replace(decode=NONE_READY),
            {
                "DecodeReady": ("False", "NotReady"),
                "Available": ("False", "NoDecode"),
                "Progressing": ("True", "Starting"),
            },
        ),
        (
            VIEW._replace(router=NONE_READY._replace(revision="")),
            {"RouterReady": ("False", "NotReady"), "Available": ("False", "NoRouter")},
        ),
        (
            VIEW._replace(decode=READY._replace(ready=1, serving=1, updated_ready=1)),
            {"DecodeReady": ("False", "NotReady"), "Available": ("True", "Serving")},
        ),
        # Ready, and nobody to pair with.
        (
            VIEW._replace(prefill=READY._replace(serving=0), decode=READY._replace(serving=0)),
            {"PrefillReady": ("True", "Ready"), "Available": ("False", "NoPair")},
        ),
        # Scaled to zero.
        (
            VIEW._replace(decode=ZERO),
            {
                "DecodeReady": ("False", "ScaledToZero"),
                "Available": ("False", "ScaledToZero"),
                "Progressing": ("False", "Complete"),
                "Degraded": ("False", "Healthy"),
            },
        ),
        (
            View(prefill=ZERO, decode=ZERO, router=RoleView()),
            {
                "TransferReady": ("False", "ScaledToZero"),
                "Available": ("False", "ScaledToZero"),
                "Progressing": ("False", "Complete"),
            },
        ),
        (
            VIEW._replace(decode=ZERO._replace(pods=1, ready=1, serving=1)),
            {"DecodeReady": ("False", "ScaledToZero"), "Progressing": ("True", "Scaling")},
        ),
        # Rollouts. Old pods are no success of the new revision, but they serve.
        (
            VIEW._replace(rolling=True, prefill=READY._replace(updated=0, updated_ready=0)),
            {
                "PrefillReady": ("False", "Creating"),
                "Available": ("True", "Serving"),
                "Progressing": ("True", "RollingOut"),
                "Degraded": ("False", "Healthy"),
            },
        ),
        (
            VIEW._replace(rolling=True, prefill=READY._replace(pods=3, ready=2, updated=1, updated_ready=0)),
            {"PrefillReady": ("False", "Creating"), "Progressing": ("True", "RollingOut")},
        ),
        (
            VIEW._replace(rolling=True, stuck="no room: set spec.rollout.maxSurge to 1"),
            {"Progressing": ("False", "Stuck"), "Degraded": ("True", "Stuck")},
        ),
        # More pods than wanted are on their way out.
        (
            VIEW._replace(decode=READY._replace(pods=3, ready=3)),
            {"DecodeReady": ("True", "Ready"), "Progressing": ("True", "Scaling")},
        ),
        # The end.
        (
            VIEW._replace(removing=True),
            {
                "PrefillReady": ("False", "Removing"),
                "TransferReady": ("False", "Removing"),
                "RouterReady": ("False", "Removing"),
                "Available": ("False", "Removing"),
                "Progressing": ("True", "Removing"),
                "Degraded": ("False", "Healthy"),
            },
        ),
        (
            VIEW._replace(removing=True, violations=(BAD,), stuck="x"),
            {"Progressing": ("True", "Removing"), "Degraded": ("False", "Healthy")},
        ),
    ],
)
def test_by_what_the_planner_knows(view: View, wanted: dict[str, tuple[str, str]]) -> None:
    found = reasons(view=view)
    assert {kind: found[kind] for kind in wanted} == wanted


@pytest.mark.parametrize(
    ("pods", "view", "wanted"),
    [
        ([], VIEW, ("True", "PreflightPassed")),
        # An engine container that runs came after a preflight that said yes, message or not.
        ([pod("decode", "d0", preflight="")], VIEW, ("True", "PreflightPassed")),
        ([starting("decode", "d0")], VIEW, ("False", "PreflightRunning")),
        ([starting("decode", "d0", preflight=pod().preflight)], VIEW, ("True", "PreflightPassed")),
        (
            [starting("decode", "d0", preflight=FAILED, preflight_failed=True)],
            VIEW,
            ("False", "PreflightFailed"),
        ),
        ([starting("decode", "d0", preflight=FAILED)], VIEW, ("False", "PreflightFailed")),
        (
            [starting("decode", "d0", preflight=FAILED, preflight_failed=True, revision=OLD)],
            VIEW,
            ("False", "PreflightRunning"),
        ),
        ([starting("decode", "d0", preflight=FAILED, deleting=True)], VIEW, ("False", "PreflightRunning")),
        ([], VIEW._replace(decode=ZERO), ("True", "PreflightPassed")),
        ([], VIEW._replace(decode=RoleView(wanted=1)), ("Unknown", "NotPlanned")),
        ([], VIEW._replace(prefill=READY._replace(wanted=3)), ("False", "PreflightRunning")),
    ],
)
def test_transfer(pods: list[PodFact], view: View, wanted: tuple[str, str]) -> None:
    assert reasons(observed(*pods), view)["TransferReady"] == wanted


def test_what_keeps_transfer_from_being_ready_is_named() -> None:
    seen = observed(*(starting("decode", f"d{i}", preflight=FAILED, preflight_failed=True) for i in range(2)))
    message = conditions(told(seen))["TransferReady"].message
    assert message == (
        "pod d0: rdma: mlx5_9 is not there. Fix: one of mlx5_0, mlx5_1; "
        "pod d1: rdma: mlx5_9 is not there. Fix: one of mlx5_0, mlx5_1"
    )


def test_violations_are_all_told_and_bounded() -> None:
    few = tuple(Violation(f"spec.x{i}", i, "is wrong", "mend it") for i in range(3))
    message = conditions(told(view=VIEW._replace(violations=few)))["Admitted"].message
    assert all(str(violation) in message for violation in few)
    many = tuple(Violation(f"spec.x{i}", "v" * 500, "is wrong", "mend it") for i in range(40))
    message = conditions(told(view=VIEW._replace(violations=many)))["Admitted"].message
    assert message.endswith("; and 36 more")
    assert len(message) <= 1000


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ({}, "family glm-5-fp8"),
        ({"family": None, "shape": {"hidden_size": 1}}, "spec.model.shape"),
        ({"family": None}, "config.json of the source"),
    ],
)
def test_where_the_shape_is_from(model: dict[str, Any], text: str) -> None:
    base = {"name": "GLM-5", "family": "glm-5-fp8", "source": {"hostPath": {"path": "/m"}}}
    found = conditions(told(of=deployment(model={**base, **model}), known=False))
    assert found["ModelInspected"].message == text


def test_what_does_not_fit_by_estimate_is_said_and_does_not_stop_anything() -> None:
    model = {"name": "GLM-5", "family": "glm-5", "source": {"hostPath": {"path": "/m"}}}
    found = conditions(told(of=deployment(model=model)))
    assert found["Admitted"].status == "True"
    assert "by estimate it does not fit: spec.prefill.contextParallel = 8" in found["Admitted"].message
    assert found["Degraded"].status == "False"


OTHER_GPU = {"podTemplate": {"spec": {"nodeSelector": {"nvidia.com/gpu.product": "another"}}}}


@pytest.mark.parametrize(
    ("seen", "of", "hint"),
    [
        (starting("decode", "d0", restarts=5, terminated="OOM"), deployment(), True),
        (starting("decode", "d0", restarts=1), deployment(), True),
        (starting("decode", "d0", waiting="ImagePullBackOff: no"), deployment(), False),
        (starting("decode", "d0", restarts=5, terminated="OOM"), deployment(decode=OTHER_GPU), False),
    ],
    ids=["crashes", "ended once", "no image", "GPU of unknown size"],
)
def test_decode_pods_that_end_under_weights_too_large_say_so(
    seen: PodFact, of: SharedKVDeployment, hint: bool
) -> None:
    status = told(observed(seen), VIEW._replace(decode=NONE_READY), of=of)
    text = conditions(status)["DecodeReady"].message
    assert ("the weights take about 695 GiB, and a decode engine gets 130 of the 140 GiB" in text) == hint
    assert "pod d0: " in text


def test_prefill_pods_that_end_are_not_told_of_the_weights_of_decode() -> None:
    status = told(observed(starting(restarts=5, terminated="OOM")), VIEW._replace(prefill=NONE_READY))
    assert "weights" not in conditions(status)["PrefillReady"].message
