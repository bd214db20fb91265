"""The machine is asked, and what is absent is told without an error."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from plait.stack import machine


def _facts(facts: list[machine.Fact]) -> dict[str, machine.Fact]:
    return {fact.name: fact for fact in facts}


def test_versions_are_those_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PACKAGES", ("plait", "no-such-package"))
    facts = _facts(machine.versions())
    assert facts["plait"].ok
    assert facts["plait"].value == machine.version("plait")
    assert facts["no-such-package"] == ("no-such-package", "not installed", False)


def test_without_a_gpu_that_is_said_and_nothing_more_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.shutil, "which", lambda _tool: None)
    facts = _facts(machine.hardware())
    assert facts["gpu"].value.startswith("none")
    assert facts["gpu"].ok
    assert machine.cuda() == []


def test_gpus_are_listed_with_who_reads_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        out = (
            "NVIDIA H200, 143771 MiB, 580.1\n" * 2
            if "nvidia-smi" in command[0]
            else "torch 2\ndevice 0 reads 1\n"
        )
        return subprocess.CompletedProcess(command, 0, out, "")

    monkeypatch.setattr(machine.shutil, "which", lambda tool: f"/usr/bin/{tool}")
    monkeypatch.setattr(machine.subprocess, "run", run)
    facts = _facts(machine.hardware())
    assert facts["gpu 1"].value == "NVIDIA H200, 143771 MiB, 580.1"
    assert machine.cuda() == [("cuda", "torch 2", True), ("peer access", "device 0 reads 1", True)]


def test_a_missing_library_is_not_ok_and_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_name: str) -> None:
        raise OSError("libibverbs.so.1: cannot open shared object file")

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "Traceback\nImportError: no mooncake\n")

    monkeypatch.setattr(machine.ctypes, "CDLL", missing)
    monkeypatch.setattr(machine.subprocess, "run", run)
    facts = _facts(machine.libraries())
    assert "install Debian's libibverbs1" in facts["libibverbs"].value
    assert not facts["libibverbs"].ok
    assert facts["mooncake import"] == ("mooncake import", "ImportError: no mooncake", False)


def test_a_folder_that_is_not_there_has_no_names(tmp_path: Path) -> None:
    assert machine._names(tmp_path / "none") == []
