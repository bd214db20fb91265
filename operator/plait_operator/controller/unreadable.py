"""What to do with a deployment whose spec has no form that this operator knows. Pure.

The API server's own checks let such an object through only where the definition is of another version than
the operator, or its webhook was away. Nothing is built or torn down for it; it says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from plait_operator.actions import Plan, SetFinalizer, WriteStatus
from plait_operator.api.status import ConditionType
from plait_operator.apply.errors import short
from plait_operator.names import FINALIZER
from plait_operator.observed import Manifest

_REASON: Final = "Unreadable"
_SAID: Final = {ConditionType.ADMITTED.value: "False", ConditionType.DEGRADED.value: "True"}


def plan(body: Manifest, violations: Sequence[str], *, now: str) -> Plan:
    """A condition that says why; when it is being deleted, the finalizer goes, for nothing can be drained."""
    meta = body["metadata"]
    if meta.get("deletionTimestamp"):
        held = FINALIZER in (meta.get("finalizers") or ())
        return Plan((SetFinalizer(present=False),) if held else ())
    told: Manifest = body.get("status") or {}
    status = {**told, "observedGeneration": meta.get("generation", 0)}
    message = short("; ".join(violations) or "the spec cannot be read")
    kept = [c for c in told.get("conditions") or () if c.get("type") not in _SAID]
    status["conditions"] = kept + [
        _condition(told, kind, value, message, generation=meta.get("generation", 0), now=now)
        for kind, value in _SAID.items()
    ]
    return Plan(() if status == told else (WriteStatus(status),))


def _condition(told: Manifest, kind: str, value: str, message: str, *, generation: int, now: str) -> Manifest:
    before: Manifest = next((c for c in told.get("conditions") or () if c.get("type") == kind), {})
    same = before.get("status") == value
    return {
        "type": kind,
        "status": value,
        "reason": _REASON,
        "message": message,
        "observedGeneration": generation,
        "lastTransitionTime": before.get("lastTransitionTime", now) if same else now,
    }
