"""Do the hooks take on the engine in this image? Rehearsed in a process of its own, with its environment."""

from __future__ import annotations

import sys

from plait.contract.verdict import CheckResult
from plait.engine.rehearsal import read_report
from plait.pod.asked import Asked
from plait.pod.checks.result import bad, good
from plait.pod.deadline import run

NAME = "hooks"
_FIX = "an engine image of the version that Plait was made for, unchanged (engine.image, engine.version)"


def check(asked: Asked) -> list[CheckResult]:
    """Half a minute on a slow machine: the engine's modules are imported."""
    command = [sys.executable, "-m", "plait.engine.rehearsal"]
    ended = run(command, environ=asked.environ, deadline=asked.deadline)
    if ended.status is None:
        reason = f"the engine's modules were not loaded within {asked.deadline.seconds:g} s"
        return [
            bad(NAME, "no answer", reason=reason, fix="see whether the image's disk and the node are slow")
        ]
    report = read_report(ended.status, ended.out, ended.errors)
    if report.trouble:
        return [bad(NAME, f"exit status {ended.status}", reason=report.trouble, fix=_FIX)]
    return [good(NAME, f"{len(report.hooks)} in force")]
