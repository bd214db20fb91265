"""The stored answers are still what the installed SGLang gives (it takes half a minute to import)."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="sglang is not installed")
def test_the_stored_answers_are_the_installed_sglangs(tmp_path: Path) -> None:
    script = Path(__file__).with_name("stock_capture.py")
    fresh = tmp_path / "fresh.json"
    subprocess.run([sys.executable, str(script), str(fresh)], check=True, timeout=240, capture_output=True)
    stored = script.with_name("stock_answers.json")
    assert json.loads(fresh.read_text("utf-8")) == json.loads(stored.read_text("utf-8"))
