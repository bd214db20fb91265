"""`.plait/bench/router`: what an image of the router has, its hot path compiled; no torch, no sglang.

Run as a program it prints the environment's interpreter, and fails where it cannot compile.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from bench.router import interpreters
from bench.router.interpreters import Interpreter
from bench.router.machine import MachineError
from bench.router.tools import ROOT, WORK, alone, do, environment, installer

_FOLDER = WORK / "router"
_EXTRAS = ("router", "otlp")
# What tools/router_wheel.sh needs. It runs where the router's libraries are, whose types mypyc reads.
_BUILD = ("mypy", "setuptools")
# What of the tree goes into the router's processes.
_SOURCES = (
    "constraints.txt",
    "pyproject.toml",
    "setup.py",
    "tools/router_wheel.sh",
    "runtime/plait/__init__.py",
    "runtime/plait/cli.py",
    "runtime/plait/contract",
    "runtime/plait/router",
    "runtime/plait/telemetry",
)
_COUNT = """
import pkgutil, plait.router
found = [m.name for m in pkgutil.walk_packages(plait.router.__path__, "plait.router.")]
from importlib.util import find_spec
print(sum(find_spec(name).origin.endswith(".so") for name in found))
"""


class Lean(NamedTuple):
    """Where the measured router is installed. `compiled`: how many of its modules are machine code."""

    python: Path
    compiled: int


def build(base: Interpreter) -> Lean:
    """Make or renew the environment on `base`; the checkout's own, not compiled, where `base` cannot compile.

    Says on standard error when it is the latter. Raises MachineError where a step fails.
    """
    if base.lacks:
        print(f"plait router runs uncompiled: {base.lacks} is not there", file=sys.stderr)
        return Lean(Path(sys.executable), 0)
    python = _FOLDER / "bin" / "python"
    wanted = requirements()
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    libraries = digest([base.path, base.version, *wanted, pins])
    sources = digest([libraries, *contents(_SOURCES)])
    stamp = _FOLDER / "stamp.json"
    made = json.loads(stamp.read_text(encoding="utf-8")) if stamp.is_file() else {}
    if made.get("libraries") != libraries:
        environment(_FOLDER, base, *wanted, "-c", str(ROOT / "constraints.txt"))
        made = {"libraries": libraries}
        stamp.write_text(json.dumps(made), encoding="utf-8")
    if made.get("sources") != sources:
        _install(python)
        made["sources"] = sources
        made["compiled"] = _compiled(python)
        stamp.write_text(json.dumps(made), encoding="utf-8")
    return Lean(python, made["compiled"])


def requirements() -> list[str]:
    """What the router depends on, from pyproject.toml, and what builds its wheel."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [each for name in _EXTRAS for each in project["optional-dependencies"][name]]
    return [*project["dependencies"], *extras, *_BUILD]


def contents(paths: Iterable[str]) -> list[str]:
    """Name and text of each file, and of all that Python reads in each folder, in a fixed order."""
    found = []
    for path in paths:
        whole = ROOT / path
        files = sorted(whole.rglob("*")) if whole.is_dir() else [whole]
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts and file.suffix != ".so":
                found += [str(file.relative_to(ROOT)), file.read_bytes().hex()]
    return found


def digest(texts: Iterable[str]) -> str:
    """One name for all of `texts` in their order."""
    return hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest()


def _install(python: Path) -> None:
    wheels = _FOLDER / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    print("compiling the router", file=sys.stderr)
    do([str(ROOT / "tools/router_wheel.sh"), str(python), str(wheels)])
    (wheel,) = wheels.glob("plait-*.whl")
    do([*installer(python), "--no-deps", "--force-reinstall", str(wheel)])


def _compiled(python: Path) -> int:
    # Not in this folder: the installed package is meant, as a program elsewhere finds it.
    command = [str(python), "-I", "-c", _COUNT]
    done = subprocess.run(command, cwd=_FOLDER, capture_output=True, text=True, check=True, timeout=60)
    count = int(done.stdout)
    if not count:
        raise MachineError("tools/router_wheel.sh made a wheel without a compiled module")
    return count


def main() -> int:
    """Build; 0: the interpreter's path is printed, 2: the machine cannot compile."""
    try:
        with alone():
            lean = build(interpreters.best())
    except MachineError as error:
        print(f"compiled router: {error}", file=sys.stderr)
        return 2
    if not lean.compiled:
        return 2
    print(lean.python)
    return 0


if __name__ == "__main__":
    sys.exit(main())
