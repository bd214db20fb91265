"""What the measurement needs beside Plait: the Go programs, built here, and the other routers' packages."""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.router.interpreters import Interpreter
from bench.router.machine import MachineError

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
WORK = ROOT / ".plait" / "bench"
_VENV = WORK / "venv"
_REQUIREMENTS = HERE / "requirements.txt"
_MEASURED = ("sglang-router", "fastapi", "uvicorn", "httpx", "uvloop", "httptools")


class LoadError(RuntimeError):
    """The generator could not do its work; the message ends with what it said."""


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Wait until no other measurement runs in this tree, and let none begin while the block lasts.

    Two at once would share cores, and the file of workers that a router reads again when it changes.
    """
    WORK.mkdir(parents=True, exist_ok=True)
    with (WORK / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another measurement in this tree", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(base: Interpreter) -> None:
    """Build the Go programs, and the virtual environment of the other routers on `base`. MachineError."""
    for log in WORK.glob("*.log"):
        log.unlink()
    if shutil.which("go") is None:
        raise MachineError("go is not on PATH: install Go 1.26 or later, which builds mocks and generator")
    do(["go", "build", "-o", f"{WORK / 'bin'}/", "./cmd/..."], cwd=HERE / "go")
    wanted = "\n".join([base.path, base.version, _REQUIREMENTS.read_text(encoding="utf-8")])
    stamp = _VENV / "requirements.txt"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return
    environment(_VENV, base, "--no-deps", "-r", str(_REQUIREMENTS))
    stamp.write_text(wanted, encoding="utf-8")


def environment(folder: Path, base: Interpreter, *packages: str) -> None:
    """Make a virtual environment afresh, with what `packages` tell the installer. MachineError."""
    uv = _uv()
    if uv is not None:
        do([uv, "venv", "--quiet", "--clear", "--python", base.path, str(folder)])
    else:
        do([base.path, "-m", "venv", "--clear", str(folder)])
    do([*installer(folder / "bin" / "python"), *packages])


def installer(python: Path) -> list[str]:
    """The command that installs packages for `python`."""
    uv = _uv()
    if uv is not None:
        # Bytecode now, as an image has it: the first start of a router would write it.
        return [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", str(python)]
    return [str(python), "-m", "pip", "install", "--quiet"]


def _uv() -> str | None:
    """As tools/setup.sh finds it; None: pip will do."""
    return shutil.which("uv") or shutil.which(ROOT / ".plait/tools/bin/uv")


def python() -> Path:
    """The interpreter that sglang-router and the baseline are installed for."""
    return _VENV / "bin" / "python"


def program(name: str) -> str:
    """Path of a Go program."""
    return str(WORK / "bin" / name)


def versions() -> dict[str, str]:
    """Of the packages that are measured, as requirements.txt pins them."""
    pins = dict(line.split("==") for line in _REQUIREMENTS.read_text(encoding="utf-8").split())
    return {name: pins[name] for name in _MEASURED}


def load(kind: str, address: str, *, key: str, pids: Sequence[int] = (), **flags: object) -> dict[str, Any]:
    """Run the generator to its end; the figures that it prints.

    Durations among `flags` are in Go's form ("4s"). Raises LoadError where it fails; answers that were wrong
    are counted in the figures.
    """
    command = [program("load"), kind, "-address", address, "-key", key, "-pids", ",".join(map(str, pids))]
    for name, value in flags.items():
        command += [f"-{name}", str(value)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise LoadError(f"load {kind} on {address} failed: {done.stderr.strip()[-1000:]}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def do(command: Sequence[str], *, cwd: Path = ROOT) -> None:
    """Run to its end. Raises MachineError with the end of what it said where it fails."""
    try:
        subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True, timeout=600)
    except subprocess.CalledProcessError as error:
        raise MachineError(f"{' '.join(command)} failed: {error.stderr.strip()[-2000:]}") from error
