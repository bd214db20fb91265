"""Do Plait's hooks take on the installed engine? Rehearsed in a process of its own, without a model."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

from plait.engine.rehearsal import Hook, HookReport, read_report

__all__ = ["Hook", "HookReport", "read_report", "try_hooks"]
_TIMEOUT_S = 300.0


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
