"""What the harness runs, and that it runs alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from bench.router import tools
from bench.router.machine import MachineError
from bench.router.tools import LoadError

_WAITER = """
import sys
from pathlib import Path
from bench.router import tools
tools.WORK = Path(sys.argv[1])
with tools.alone():
    print("in", flush=True)
"""


def test_a_second_measurement_waits_for_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "WORK", tmp_path)
    with tools.alone():
        second = subprocess.Popen(
            [sys.executable, "-c", _WAITER, str(tmp_path)],
            cwd=tools.ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert second.stderr is not None
        assert "waiting for another" in second.stderr.readline()
        assert second.poll() is None
    out, _ = second.communicate(timeout=20)
    assert (out.strip(), second.returncode) == ("in", 0)


def test_pinned_versions_of_what_is_measured() -> None:
    assert tools.versions()["sglang-router"] == "0.3.2"


def test_requirements_are_names_and_versions_only() -> None:
    lines = (tools.HERE / "requirements.txt").read_text().split()
    assert lines == sorted(lines, key=lambda line: line.split("==")[0])
    assert all(line.count("==") == 1 and "/" not in line for line in lines)


def test_a_step_that_fails_says_why() -> None:
    with pytest.raises(MachineError, match=r"sh -c .* failed: no room"):
        tools.do(["sh", "-c", "echo no room >&2; exit 3"])


def test_a_generator_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "WORK", tmp_path)
    fake = tmp_path / "bin" / "load"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho 'no such host' >&2\nexit 1\n")
    fake.chmod(0o755)
    with pytest.raises(LoadError, match="load requests on x:1 failed: no such host"):
        tools.load("requests", "x:1", key="")
