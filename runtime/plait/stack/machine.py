"""What this machine can do for Plait: devices, libraries, versions. What is absent is told, not raised."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import psutil

PACKAGES = ("plait", "sglang", "torch", "triton", "transformers", "numpy", "cuda-bindings")
TRANSFER_ENGINES = ("mooncake-transfer-engine", "mooncake-transfer-engine-non-cuda")
_TIMEOUT_S = 60.0


class Fact(NamedTuple):
    """One line of the doctor. `ok` False: something a Plait engine here would need is not there."""

    name: str
    value: str
    ok: bool = True


def version(package: str) -> str | None:
    """Installed version, read from package data."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def versions() -> list[Fact]:
    """Python, Plait, the engine and what both stand on."""
    facts = [Fact("python", platform.python_version())]
    facts += [Fact(name, version(name) or "not installed", version(name) is not None) for name in PACKAGES]
    engine = next((f"{name} {found}" for name in TRANSFER_ENGINES if (found := version(name))), None)
    return [*facts, Fact("mooncake", engine or "not installed", engine is not None)]


def hardware() -> list[Fact]:
    """Processors, memory, GPUs as the driver lists them, RDMA devices."""
    cores = len(os.sched_getaffinity(0))
    facts = [
        Fact("processors", f"{cores} ({platform.machine()})"),
        Fact("memory", f"{psutil.virtual_memory().total / 2**30:.0f} GiB"),
    ]
    gpus = _nvidia_smi()
    facts += [Fact(f"gpu {number}", text) for number, text in enumerate(gpus)]
    if not gpus:
        facts.append(Fact("gpu", "none: engines run on the CPU (PLAIT_CPU=1), for tests and the demo only"))
    rdma = _names(Path("/sys/class/infiniband"))
    facts.append(Fact("rdma", ", ".join(rdma) or "none: transfers go over TCP (mooncake_tcp)"))
    return facts


def libraries() -> list[Fact]:
    """Can the transfer engine be loaded, and the library that it needs from the system?"""
    try:
        ctypes.CDLL("libibverbs.so.1")
        verbs = Fact("libibverbs", "loads")
    except OSError as error:
        verbs = Fact("libibverbs", f"{error}: install Debian's libibverbs1", False)
    return [verbs, _imports("mooncake", "import mooncake.engine")]


def cuda() -> list[Fact]:
    """What torch sees, and which devices can read each other's memory; only asked where there is a GPU."""
    if not _nvidia_smi():
        return []
    code = (
        "import torch\n"
        "n = torch.cuda.device_count()\n"
        "print('torch', torch.__version__, 'CUDA', torch.version.cuda, 'devices', n)\n"
        "for a in range(n):\n"
        "    peers = [b for b in range(n) if a != b and torch.cuda.can_device_access_peer(a, b)]\n"
        "    print('device', a, 'reads', ', '.join(map(str, peers)) or 'no other')\n"
    )
    run = _python(code)
    if run is None or run.returncode:
        return [Fact("cuda", _last(run) or "torch does not answer", False)]
    first, *rest = run.stdout.strip().splitlines()
    return [Fact("cuda", first), *(Fact("peer access", line) for line in rest)]


def _imports(name: str, code: str) -> Fact:
    run = _python(code)
    if run is not None and run.returncode == 0:
        return Fact(f"{name} import", "works")
    return Fact(f"{name} import", _last(run) or f"no answer within {_TIMEOUT_S:g} s", False)


def _python(code: str) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return None


def _last(run: subprocess.CompletedProcess[str] | None) -> str:
    lines = run.stderr.strip().splitlines() if run else []
    return lines[-1] if lines else ""


def _nvidia_smi() -> list[str]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = [tool, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        run = subprocess.run(query, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (subprocess.TimeoutExpired, OSError):
        return []
    return [line.strip() for line in run.stdout.splitlines() if line.strip()] if run.returncode == 0 else []


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []
