"""Would the engine accept its flags, settings and model? The same validator as at its start."""

from __future__ import annotations

from plait.contract.validate import validate_launch
from plait.contract.verdict import CheckResult
from plait.contract.versions import installed_engine
from plait.pod.asked import Asked
from plait.pod.checks.result import bad, good

NAME = "flags"


def check(asked: Asked) -> list[CheckResult]:
    """One result for each violation, so that each has its own fix."""
    # The version has a check of its own.
    version = installed_engine()
    found = [
        violation
        for violation in validate_launch(asked.flags, asked.environ, engine_version=version)
        if violation.field != "engine.version"
    ]
    if not found:
        return [good(NAME, f"{len(asked.flags)} words")]
    return [
        bad(
            f"{NAME}:{each.field}", "" if each.value is None else each.value, reason=each.reason, fix=each.fix
        )
        for each in found
    ]
