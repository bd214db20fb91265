"""Events: what changed for the better or the worse, told once, when it changes."""

from __future__ import annotations

from typing import Final, Literal

from plait_operator.actions import Event
from plait_operator.api.reasons import Reason
from plait_operator.api.status import Condition, ConditionType, SharedKVDeploymentStatus

_GOOD: Final = {
    ConditionType.MODEL_INSPECTED: "True",
    ConditionType.ADMITTED: "True",
    ConditionType.AVAILABLE: "True",
    ConditionType.DEGRADED: "False",
}
"""Conditions that people are told of, and the status in which all is well."""

_ASKED_FOR: Final = frozenset({Reason.REMOVING, Reason.SCALED_TO_ZERO})
"""Nothing is served any more, and nobody expects that it is."""


def events(before: SharedKVDeploymentStatus, after: SharedKVDeploymentStatus) -> list[Event]:
    """At most one for each condition whose status changed, and one for each role whose revision did.

    A new condition that is well is news only where it was not well before: a start tells of what is wrong,
    and then that requests are served.
    """
    old = {condition.type: condition for condition in before.conditions}
    told: list[Event] = []
    for condition in after.conditions:
        event = _of(old.get(condition.type), condition)
        # One fault shows in several conditions, and is told once.
        if event is not None and all(event.reason != one.reason for one in told):
            told.append(event)
    for role in ("prefill", "decode"):
        was, now = getattr(before, role).revision, getattr(after, role).revision
        if was and now and was != now:
            told.append(Event("Normal", "NewRevision", f"{role} goes from revision {was} to {now}"))
    return told


def _of(before: Condition | None, after: Condition) -> Event | None:
    good = next((status for kind, status in _GOOD.items() if kind == after.type), None)
    if good is None or after.status == "Unknown" or (before is not None and before.status == after.status):
        return None
    if after.status == good:
        news = before is not None or after.type == ConditionType.AVAILABLE
        return Event("Normal", after.reason, _text(after)) if news else None
    # Nothing serves yet when it has just been made: that is no warning.
    if before is None and after.type in (ConditionType.AVAILABLE, ConditionType.MODEL_INSPECTED):
        return None
    kind: Literal["Normal", "Warning"] = "Normal" if after.reason in _ASKED_FOR else "Warning"
    return Event(kind, after.reason, _text(after))


def _text(condition: Condition) -> str:
    return f"{condition.type} is {condition.status}: {condition.message}".rstrip(": ")
