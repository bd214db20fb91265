"""Refusals before anything starts: what each engine would say about its own flags, all at once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import metadata

from plait.contract.validate import validate_launch
from plait.contract.violation import Violation
from plait.stack.plan import StackPlan


def engine_version() -> str | None:
    """Version of the installed engine, None when there is none; reads package data, imports nothing."""
    try:
        return metadata.version("sglang")
    except metadata.PackageNotFoundError:
        return None


def refusals(plan: StackPlan, environ: Mapping[str, str] | None = None) -> list[Violation]:
    """Every reason why an engine of `plan` would refuse to start, with the child's name before the field.

    `environ`: the supervisor's (default: this process's), which the children inherit. A reason that several
    children share is told once.
    """
    outer = os.environ if environ is None else environ
    version = engine_version()
    found: dict[tuple[object, ...], Violation] = {}
    for child in plan.children:
        if "plait.engine" not in child.argv:
            continue
        flags = child.argv[child.argv.index("plait.engine") + 1 :]
        for violation in validate_launch(flags, {**outer, **child.env}, engine_version=version):
            named = violation._replace(field=f"{child.name}: {violation.field}")
            found.setdefault((violation.field, str(violation.value), violation.reason), named)
    return list(found.values())
