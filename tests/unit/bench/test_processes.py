"""A tree of processes: pinned, counted, and ended with its children."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import psutil
import pytest
from bench.router.processes import free_ports, running

_PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; held = bytearray(60 << 20); time.sleep(60)"])
print(child.pid, flush=True)
held = open("/dev/null")
time.sleep(60)
"""


@pytest.fixture
def core() -> int:
    return min(os.sched_getaffinity(0))


def _until(path: Path, text: str) -> None:
    until = time.monotonic() + 20
    while text not in path.read_text():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_tree_is_counted_and_ends(tmp_path: Path, core: int) -> None:
    log = tmp_path / "log"
    with running([sys.executable, "-c", _PARENT], core=core, log=log) as tree:
        _until(log, "\n")
        child = int(log.read_text())
        until = time.monotonic() + 20
        while (memory := tree.memory()).largest < 60:
            assert time.monotonic() < until
            time.sleep(0.02)
        assert tree.pids()[1:] == [child]
        assert psutil.Process(child).cpu_affinity() == [core]
        assert memory.together > memory.largest
        assert memory.largest_peak >= memory.largest
        assert tree.files() >= 7
        assert tree.ended is None
    assert tree.ended is not None
    assert not psutil.pid_exists(child)


def test_the_end_of_a_log_says_why_a_program_ended(tmp_path: Path, core: int) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", "raise SystemExit('no such port')"]
    with running(command, core=core, log=log) as tree:
        _until(log, "port")
        assert "no such port" in tree.tail()


def test_ports_are_free_and_differ() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
