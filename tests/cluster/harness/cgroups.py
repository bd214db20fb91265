"""The cgroup of a cluster: every process of it is in there, so that none can be missed when it ends.

    <hierarchy>/plait-<name>/system      the components
    <hierarchy>/plait-<name>/kubepods    the pods (kubelet makes it)

cgroup v1 has one hierarchy for each controller, v2 a single one. On v1 the components join `pids` alone:
it is enough to find them by, and their CPU and memory stay accounted where the caller's are.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Final

from tests.cluster.harness.failure import ClusterError

ROOT: Final = Path("/sys/fs/cgroup")
_V1: Final = (
    "cpu",
    "cpuacct",
    "cpuset",
    "memory",
    "devices",
    "freezer",
    "blkio",
    "pids",
    "systemd",
    "unified",
)
_V2_NEEDED: Final = {"cpu", "memory", "pids"}


def unified() -> bool:
    """Whether this machine has cgroup v2 alone."""
    return (ROOT / "cgroup.controllers").exists()


def missing() -> str:
    """Which part of cgroups a node would miss here; empty: none."""
    if unified():
        held = set((ROOT / "cgroup.controllers").read_text().split())
        lacking = sorted(_V2_NEEDED - held)
    else:
        lacking = [c for c in ("cpu", "cpuset", "memory", "devices", "pids") if not (ROOT / c).is_dir()]
    if lacking:
        return f"cgroup controllers {', '.join(lacking)} under {ROOT}"
    return "" if os.access(_trackers("/")[0], os.W_OK) else f"write access to {ROOT}"


def _hierarchies() -> list[Path]:
    if unified():
        return [ROOT]
    # Some are links to a combined one (cpu,cpuacct): resolved, each counts once.
    return sorted({(ROOT / c).resolve() for c in _V1 if (ROOT / c).is_dir()})


def _trackers(group: str) -> list[Path]:
    return [(ROOT if unified() else ROOT / "pids") / group.lstrip("/")]


def create(group: str) -> None:
    """Make `group` in every hierarchy, and `system` in it. Again is fine."""
    for hierarchy in _hierarchies():
        folder = hierarchy / group.lstrip("/")
        folder.mkdir(exist_ok=True)
        # A new cpuset is empty, and nothing can join an empty one.
        for name in ("cpuset.cpus", "cpuset.mems"):
            if not unified() and (folder / name).exists() and not (folder / name).read_text().strip():
                (folder / name).write_text((hierarchy / name).read_text())
    if unified():
        for folder in (ROOT, ROOT / group.lstrip("/")):
            for controller in (folder / "cgroup.controllers").read_text().split():
                (folder / "cgroup.subtree_control").write_text(f"+{controller}")
    for tracker in _trackers(group):
        (tracker / "system").mkdir(exist_ok=True)


def entrance(group: str) -> Path:
    """The file that a process writes its id to in order to join the components of `group`."""
    return _trackers(group)[0] / "system" / "cgroup.procs"


def processes(group: str) -> set[int]:
    """Every process in `group`, pods' too."""
    found: set[int] = set()
    for tracker in _trackers(group):
        for procs in tracker.rglob("cgroup.procs"):
            try:
                found.update(int(pid) for pid in procs.read_text().split())
            except OSError:
                continue  # It went while we looked.
    # 0 stands for a process that this one's PID namespace does not show.
    return found - {0, os.getpid()}


def kill(group: str, *, seconds: float = 20.0) -> None:
    """End every process in `group`, at once and without asking. ClusterError when some will not go."""
    deadline = time.monotonic() + seconds
    while left := processes(group):
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline:
            raise ClusterError(f"cgroup {group}: processes {sorted(left)[:8]} do not end")
        time.sleep(0.05)


def remove(group: str, *, seconds: float = 10.0) -> None:
    """Remove `group` from every hierarchy; it must be empty. What the kernel still holds is tried again."""
    deadline = time.monotonic() + seconds
    while True:
        left = False
        for hierarchy in _hierarchies():
            top = hierarchy / group.lstrip("/")
            if not top.is_dir():
                continue
            for folder in sorted((d for d in [top, *top.rglob("*")] if d.is_dir()), reverse=True):
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    continue
                except OSError:
                    left = True
        if not left:
            return
        if time.monotonic() > deadline:
            raise ClusterError(f"cgroup {group}: cannot be removed, something is still in it")
        time.sleep(0.1)
