"""Which interpreter is chosen."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from bench.router import interpreters
from bench.router.interpreters import Interpreter
from bench.router.machine import MachineError


def _made(path: str, probe_ms: float, *, headers: bool = True, compiler: str = "sh") -> Interpreter:
    return Interpreter(path, "3.11.0", False, headers, compiler, probe_ms)


@pytest.mark.parametrize(
    ("found", "chosen"),
    [
        ([_made("a", 6.0), _made("b", 4.0)], "b"),
        ([_made("a", 4.1), _made("b", 4.0)], "a"),
        ([_made("a", 4.0, headers=False), _made("b", 6.0)], "b"),
        ([_made("a", 4.0, compiler="no-such-cc"), _made("b", 6.0)], "b"),
        ([_made("a", 6.0, headers=False), _made("b", 4.0, compiler="")], "b"),
    ],
    ids=["fastest", "equal: the first", "with headers", "with a compiler", "none can compile"],
)
def test_the_fastest_that_can_compile(found: list[Interpreter], chosen: str) -> None:
    assert interpreters.fastest(found).path == chosen


@pytest.mark.parametrize(
    ("made", "lacks"),
    [
        (_made("a", 1.0), ""),
        (_made("a", 1.0, headers=False), "Python's headers (Debian: python3.11-dev)"),
        (_made("a", 1.0, compiler="no-such-cc"), "the C compiler 'no-such-cc'"),
        (_made("a", 1.0, compiler=""), "the C compiler 'cc'"),
    ],
)
def test_what_is_missing_is_named(made: Interpreter, lacks: str) -> None:
    assert made.lacks == lacks


def test_one_build_under_two_names_is_timed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "python3.11"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    found = list(interpreters._probed([str(broken), sys.executable, sys.executable]))
    assert [each.version for each in found] == [" ".join(sys.version.split())]
    assert found[0].probe_ms > 0


def test_a_machine_without_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreters, "_candidates", list)
    with pytest.raises(MachineError, match=r"no python3\.11 that runs is on PATH or in /usr/bin"):
        interpreters.best()
