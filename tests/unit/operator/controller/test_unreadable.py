"""A deployment that has no known form."""

from __future__ import annotations

from typing import Any

import pytest

from plait_operator.actions import Plan, SetFinalizer, WriteStatus
from plait_operator.controller.unreadable import plan
from plait_operator.names import FINALIZER

NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"
FAULTS = ["spec.engine.image: missing", "spec.cache.pageSize: '64' is a text"]


def body(status: Any = None, **meta: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "d", "namespace": "ns", "uid": "u", "generation": 3, **meta},
        "status": status,
    }


def written(told: Plan) -> dict[str, Any]:
    (action,) = told.actions
    assert isinstance(action, WriteStatus)
    return action.status


def test_it_says_all_that_is_wrong_and_keeps_the_rest() -> None:
    ready = {"type": "PrefillReady", "status": "True"}
    status = written(plan(body({"endpoint": "e", "conditions": [ready]}), FAULTS, now=NOW))
    assert status["endpoint"] == "e"
    assert status["observedGeneration"] == 3
    found = {c["type"]: c for c in status["conditions"]}
    assert found["PrefillReady"] == ready
    assert (found["Admitted"]["status"], found["Degraded"]["status"]) == ("False", "True")
    assert all(fault in found["Admitted"]["message"] for fault in FAULTS)


def test_nothing_is_written_twice() -> None:
    status = written(plan(body(), FAULTS, now=NOW))
    assert plan(body(status), FAULTS, now=LATER).actions == ()


def test_the_time_of_a_condition_is_that_of_its_change() -> None:
    status = written(plan(body(), FAULTS, now=NOW))
    again = written(plan(body(status), FAULTS[:1], now=LATER))
    assert {c["lastTransitionTime"] for c in again["conditions"]} == {NOW}


@pytest.mark.parametrize(
    ("finalizers", "actions"), [([FINALIZER], (SetFinalizer(False),)), ([], ()), (["a"], ())]
)
def test_one_that_is_to_go_is_not_held(finalizers: list[str], actions: Any) -> None:
    going = body(deletionTimestamp=NOW, finalizers=finalizers)
    assert plan(going, FAULTS, now=NOW).actions == actions
