"""When the environment of the measured router is made anew, and what is used where it cannot be."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from bench.router import lean
from bench.router.interpreters import Interpreter
from bench.router.machine import MachineError

_BASE = Interpreter("/opt/python3.11", "3.11.0", False, True, "sh", 4.0)


class Steps(list[str]):
    """What was done, in place of minutes of compiling."""


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Steps:
    done = Steps()

    def environment(folder: Path, base: Interpreter, *packages: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        done.append(f"environment on {base.path}")

    def install(python: Path) -> None:
        done.append("wheel")

    def compiled(python: Path) -> int:
        return 31

    monkeypatch.setattr(lean, "_FOLDER", tmp_path / "router")
    monkeypatch.setattr(lean, "environment", environment)
    monkeypatch.setattr(lean, "_install", install)
    monkeypatch.setattr(lean, "_compiled", compiled)
    return done


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small checkout."""
    root = tmp_path / "tree"
    (root / "runtime/plait/router").mkdir(parents=True)
    (root / "runtime/plait/router/leg.py").write_text("a = 1\n")
    (root / "constraints.txt").write_text("httptools==0.9.0\n")
    (root / "pyproject.toml").write_text((lean.ROOT / "pyproject.toml").read_text())
    monkeypatch.setattr(lean, "ROOT", root)
    monkeypatch.setattr(lean, "_SOURCES", ("constraints.txt", "runtime/plait/router"))
    return root


def test_nothing_is_done_twice(steps: Steps, tree: Path, tmp_path: Path) -> None:
    made = lean.build(_BASE)
    assert made == (tmp_path / "router" / "bin" / "python", 31)
    assert lean.build(_BASE) == made
    assert steps == ["environment on /opt/python3.11", "wheel"]


def test_changed_sources_need_a_wheel_alone(steps: Steps, tree: Path) -> None:
    lean.build(_BASE)
    steps.clear()
    (tree / "runtime/plait/router/leg.py").write_text("a = 2\n")
    lean.build(_BASE)
    assert steps == ["wheel"]


@pytest.mark.parametrize("version", ["3.11.0", "3.11.9"])
def test_other_libraries_or_another_interpreter_need_all(steps: Steps, tree: Path, version: str) -> None:
    lean.build(_BASE)
    steps.clear()
    if version == _BASE.version:
        (tree / "constraints.txt").write_text("httptools==0.9.1\n")
    lean.build(_BASE._replace(version=version))
    assert steps == ["environment on /opt/python3.11", "wheel"]


def test_a_step_that_failed_is_done_again(
    steps: Steps, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(python: Path) -> None:
        raise MachineError("no room on the disk")

    with monkeypatch.context() as patched:
        patched.setattr(lean, "_install", fails)
        with pytest.raises(MachineError, match="no room"):
            lean.build(_BASE)
    assert "sources" not in json.loads((tmp_path / "router" / "stamp.json").read_text())
    lean.build(_BASE)
    assert steps == ["environment on /opt/python3.11", "wheel"]


def test_without_a_compiler_the_checkout_runs(steps: Steps, capsys: pytest.CaptureFixture[str]) -> None:
    assert lean.build(_BASE._replace(headers=False)) == (Path(sys.executable), 0)
    assert "uncompiled: Python's headers" in capsys.readouterr().err
    assert steps == []


def test_all_that_the_router_imports_is_counted() -> None:
    found = lean.contents(lean._SOURCES)
    names = found[::2]
    assert {"setup.py", "constraints.txt", "runtime/plait/router/leg.py"} <= {*names}
    assert "runtime/plait/telemetry/metrics.py" in names
    assert not [name for name in names if "__pycache__" in name or name.endswith(".so")]


def test_requirements_have_no_engine() -> None:
    wanted = " ".join(lean.requirements())
    assert "httptools" in wanted
    assert "mypy" in wanted
    assert "sglang" not in wanted
    assert "torch" not in wanted
