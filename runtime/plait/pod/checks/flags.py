"""Would the engine accept its flags, settings and model? The same validator as at its start."""

from __future__ import annotations

import re

from plait.contract.validate import validate_launch
from plait.contract.verdict import CheckResult
from plait.contract.versions import installed_engine
from plait.contract.violation import Violation
from plait.pod.asked import Asked
from plait.pod.checks.result import bad, good

NAME = "flags"
_SECRET = re.compile(r"api[-_]key|password|HF_TOKEN", re.IGNORECASE)


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
    return [_told(each) for each in found]


def _told(violation: Violation) -> CheckResult:
    name = f"{NAME}:{violation.field}"
    if _SECRET.search(violation.field):
        # The verdict ends up in the deployment's status, which more people read than the pod's template.
        reason = "is refused; neither its value nor the exact reason is shown here"
        return bad(
            name, "", reason=reason, fix="see the engine's own message, by `plait check` or at its start"
        )
    value = "" if violation.value is None else violation.value
    return bad(name, value, reason=violation.reason, fix=violation.fix)
