"""What runs in an init container or a preStop hook starts at once: without torch and without the engine."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["preflight", "drain", "inspect"])
def test_nothing_heavy_is_imported(module: str) -> None:
    heavy = "('torch', 'sglang', 'transformers', 'numpy')"
    code = f"import sys, plait.pod.{module}; print([m for m in {heavy} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.stdout.strip() == "[]", run.stderr
