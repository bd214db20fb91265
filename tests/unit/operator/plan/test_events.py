"""Which changes of the status are news."""

from __future__ import annotations

import pytest

from plait_operator.actions import Event
from plait_operator.api.reasons import Reason
from plait_operator.api.status import Condition, RoleStatus, SharedKVDeploymentStatus
from plait_operator.plan.events import events


def status(revision: str = "", **conditions: str) -> SharedKVDeploymentStatus:
    told = []
    for kind, text in conditions.items():
        value, reason = text.split(" ")
        told.append(Condition(type=kind, status=value, reason=reason, message="why"))
    return SharedKVDeploymentStatus(conditions=told, decode=RoleStatus(revision=revision))


SERVES = {"Available": "True Serving"}
ROWS = [
    # (name, before, after, kind and reason of the event; none)
    ("first look, well", {}, {"Admitted": "True Valid", "Degraded": "False Healthy"}, []),
    ("first look, being read", {}, {"ModelInspected": "False Inspecting"}, []),
    ("first look, nothing serves yet", {}, {"Available": "False NoRouter"}, []),
    ("first look, refused", {}, {"Admitted": "False Invalid"}, ["Warning Invalid"]),
    ("serves", {"Available": "False NoRouter"}, {"Available": "True Serving"}, ["Normal Serving"]),
    ("serves no more", {"Available": "True Serving"}, {"Available": "False NoDecode"}, ["Warning NoDecode"]),
    ("still", {"Available": "True Serving"}, {"Available": "True Serving"}, []),
    ("another reason", {"Available": "False NoRouter"}, {"Available": "False NoDecode"}, []),
    ("unknown", {"Admitted": "True Valid"}, {"Admitted": "Unknown NotChecked"}, []),
    ("degraded", {"Degraded": "False Healthy"}, {"Degraded": "True CrashLooping"}, ["Warning CrashLooping"]),
    ("well again", {"Degraded": "True CrashLooping"}, {"Degraded": "False Healthy"}, ["Normal Healthy"]),
    ("taken away on request", SERVES, {"Available": "False Removing"}, ["Normal Removing"]),
    ("zero on request", SERVES, {"Available": "False ScaledToZero"}, ["Normal ScaledToZero"]),
    ("routine", {"Progressing": "False Complete"}, {"Progressing": "True RollingOut"}, []),
    ("a pod starts", {"DecodeReady": "True Ready"}, {"DecodeReady": "False NotReady"}, []),
    (
        "one fault in two conditions",
        {"Admitted": "True Valid", "Degraded": "False Healthy"},
        {"Admitted": "False Invalid", "Degraded": "True Invalid"},
        ["Warning Invalid"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after", "told"), [pytest.param(*row[1:], id=row[0]) for row in ROWS])
def test_news(before: dict[str, str], after: dict[str, str], told: list[str]) -> None:
    found = events(status(**before), status(**after))
    assert [f"{event.kind} {event.reason}" for event in found] == told


@pytest.mark.parametrize(
    ("was", "now", "told"), [("", "r1", 0), ("r1", "r1", 0), ("r1", "r2", 1), ("r1", "", 0)]
)
def test_a_new_revision(was: str, now: str, told: int) -> None:
    found = events(status(was), status(now))
    assert len(found) == told
    for event in found:
        assert event == Event("Normal", "NewRevision", f"decode goes from revision {was} to {now}")


def test_reasons_exist() -> None:
    known = {reason.value for reason in Reason}
    for _, before, after, _ in ROWS:
        assert {text.split(" ")[1] for text in [*before.values(), *after.values()]} <= known
