"""Short ways to say how a check went."""

from __future__ import annotations

from plait.contract.verdict import CheckResult


def good(name: str, value: object) -> CheckResult:
    """It is as it must be."""
    return CheckResult(name=name, ok=True, value=str(value))


def bad(name: str, value: object, *, reason: str, fix: str) -> CheckResult:
    """It is not, and the engine must not start."""
    return CheckResult(name=name, ok=False, value=str(value), reason=reason, fix=fix)


def skipped(name: str, reason: str, *, value: object = "") -> CheckResult:
    """It does not matter here."""
    return CheckResult(name=name, ok=True, skipped=True, value=str(value), reason=reason)
