"""The machine that measures: which core belongs to whom, how many files may be open, and what it is."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
from pathlib import Path
from typing import NamedTuple

# 1,000 streams need a connection to the client and one to each engine, and the generator its own.
_FILES = 16_384


class Cores(NamedTuple):
    """One core for the router alone, the others' first for generator, mock engines and this program."""

    router: int
    load: int


class MachineError(RuntimeError):
    """The machine cannot measure; the message says what to change."""


def split_cores() -> Cores:
    """Take two cores of those this process may use, and move this process to the second.

    Raises MachineError where there is only one.
    """
    able = sorted(os.sched_getaffinity(0))
    if len(able) < 2:
        raise MachineError(
            f"this process may use core {able[0]} only: give it two, one for the router and one for the load"
        )
    cores = Cores(router=able[0], load=able[1])
    os.sched_setaffinity(0, {cores.load})
    return cores


def allow_files() -> None:
    """Raise the limit of open files, for children too. Raises MachineError where that is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < _FILES:
        raise MachineError(f"at most {hard} files may be open (ulimit -Hn): raise that to {_FILES}")
    wanted = _FILES if soft == resource.RLIM_INFINITY else max(soft, _FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def describe() -> dict[str, str]:
    """CPU, kernel and load of this machine, for the report."""
    cpu = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.machine(),
    )
    return {
        "cpu": cpu,
        "cores": str(os.cpu_count()),
        "kernel": platform.release(),
        "go": _said("go", "version"),
        "load_average_before": " ".join(f"{x:.1f}" for x in os.getloadavg()),
    }


def commit(root: Path) -> str:
    """Name of the tree that is measured, `-dirty` with changes that are not committed, "" outside git."""
    return _said("git", "-C", str(root), "describe", "--always", "--dirty")


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines()


def _said(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
