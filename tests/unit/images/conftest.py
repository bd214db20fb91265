"""The tree of the runtime image, built once from this checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `tree.sh` makes."""
    out = tmp_path_factory.mktemp("runtime") / "site"
    command = [str(ROOT / "images/runtime/tree.sh"), str(out), sys.executable]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    print(run.stdout)
    return out
