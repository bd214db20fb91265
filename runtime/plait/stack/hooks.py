"""Do Plait's hooks take on the installed engine? Rehearsed in a process of its own, without a model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import NamedTuple

from plait.engine.rehearsal import MARK

_TIMEOUT_S = 300.0


class Hook(NamedTuple):
    """One hook in force."""

    target: str
    kind: str
    why: str


class HookReport(NamedTuple):
    """`trouble` is empty when every hook took; otherwise the message that an engine would end with."""

    hooks: list[Hook]
    trouble: str


def try_hooks(settings: Mapping[str, str]) -> HookReport:
    """Applies the hooks that `settings` ask for in a fresh process; half a minute on a slow machine."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PLAIT_")}
    env = {**outer, **settings}
    if settings.get("PLAIT_CPU") == "1":
        env |= {"TORCHDYNAMO_DISABLE": "1", "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "plait.engine.rehearsal"]
    try:
        run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return HookReport([], f"no answer within {_TIMEOUT_S:g} s")
    return read_report(run.returncode, run.stdout, run.stderr)


def read_report(status: int, out: str, errors: str) -> HookReport:
    """What a rehearsal said, from its exit status and its output."""
    line = next((each for each in out.splitlines() if each.startswith(MARK)), None)
    if status or line is None:
        return HookReport([], _message(errors) or f"ended with status {status} and said nothing")
    hooks = [Hook(*each) for each in json.loads(line.removeprefix(MARK))]
    if not hooks:
        return HookReport([], "the engine did not load the plugin (is it filtered out by SGLANG_PLUGINS?)")
    return HookReport(hooks, "")


def _message(errors: str) -> str:
    """Plait's own message with what follows it, or the last line of a traceback."""
    lines = [line for line in errors.splitlines() if line.strip()]
    at = next((number for number, line in enumerate(lines) if line.startswith("plait: ")), None)
    if at is not None:
        return "\n".join(lines[at:]).removeprefix("plait: ")
    return lines[-1] if lines else ""
