"""Which Python 3.11 the routers run on: one that can compile, and the fastest of those.

Builds of one version differ by a third in speed, with or without profile-guided optimization. Its flag,
`--enable-optimizations`, does not tell: Debian's build is optimized, and was configured without it. So they
are timed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.router.machine import MachineError

_NAME = "python3.11"
_FOLDERS = ("/usr/bin", "/usr/local/bin")
# Times of one interpreter differ by so much from run to run: less is no reason to leave the one before.
_EQUAL = 1.05
# Calls, attributes, dictionaries and strings, as the router uses them; CPU time, the best of several.
_PROBE = """
import json, os, sys, sysconfig, time

class Item:
    __slots__ = ("name", "size")
    def __init__(self, name, size):
        self.name = name
        self.size = size
    def count(self, into):
        into[self.name] = into.get(self.name, 0) + self.size
        return len(self.name.encode())

def work():
    into = {}
    items = [Item(f"k{i % 97}", i) for i in range(3000)]
    return sum(item.count(into) for _ in range(10) for item in items)

best = float("inf")
for _ in range(9):
    began = time.process_time()
    work()
    best = min(best, time.process_time() - began)
print(json.dumps({
    # Not that of an active virtual environment.
    "path": getattr(sys, "_base_executable", "") or sys.executable,
    "version": " ".join(sys.version.split()),
    "enable_optimizations": "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or ""),
    "headers": os.path.isfile(os.path.join(sysconfig.get_path("include"), "Python.h")),
    "compiler": (sysconfig.get_config_var("CC") or "").partition(" ")[0],
    "probe_ms": best * 1000,
}))
"""


class Interpreter(NamedTuple):
    """A build of Python. `compiler`: the command that it was built with; `probe_ms`: a loop's CPU time."""

    path: str
    version: str
    enable_optimizations: bool
    headers: bool
    compiler: str
    probe_ms: float

    @property
    def lacks(self) -> str:
        """What extension modules cannot be built without, "" where all is there."""
        if not self.headers:
            return "Python's headers (Debian: python3.11-dev)"
        if not self.compiler or shutil.which(self.compiler) is None:
            return f"the C compiler {self.compiler or 'cc'!r}"
        return ""


def best() -> Interpreter:
    """The fastest that can build extension modules, else the fastest. Raises MachineError where none is."""
    found = list(_probed(_candidates()))
    if not found:
        raise MachineError(f"no {_NAME} that runs is on PATH or in {', '.join(_FOLDERS)}: install one")
    return fastest(found)


def fastest(found: Sequence[Interpreter]) -> Interpreter:
    """Of those that can build extension modules, where any can, the first that is as fast as the fastest."""
    able = [each for each in found if not each.lacks] or found
    least = min(each.probe_ms for each in able)
    return next(each for each in able if each.probe_ms <= least * _EQUAL)


def _candidates() -> list[str]:
    """The system's first; the one that this program's virtual environment was made from is always there."""
    folders = [*_FOLDERS, *os.get_exec_path(), str(Path(sys.base_prefix) / "bin")]
    paths = (Path(folder) / _NAME for folder in dict.fromkeys(folders))
    return [str(path) for path in paths if os.access(path, os.X_OK) and path.is_file()]


def _probed(paths: Iterable[str]) -> Iterable[Interpreter]:
    """Each build once, however many names it has; what is no working interpreter is left out."""
    seen = set()
    for path in paths:
        # In the root folder: pyenv's and others' shims choose by files in the current one.
        try:
            done = subprocess.run(
                [path, "-I", "-c", _PROBE], cwd="/", capture_output=True, text=True, check=True, timeout=60
            )
        except (OSError, subprocess.SubprocessError):
            continue
        made = Interpreter(**json.loads(done.stdout))
        if (real := os.path.realpath(made.path)) not in seen:
            seen.add(real)
            yield made
