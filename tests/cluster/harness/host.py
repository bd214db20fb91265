"""What the cluster takes from the machine: whether it can be had, and how it is given back."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.cluster.harness import cgroups
from tests.cluster.harness.failure import ClusterError

PLANE_PACKAGES: Final = {"ip": "iproute2", "nsenter": "util-linux"}
NODE_PACKAGES: Final = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
}
"""Program, or file, and the Debian package that brings it."""

# kubelet sets these on the host, whatever namespace it runs in.
_SYSCTLS: Final = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops")
_SYSCTLS_SAVED: Final = "host-sysctls.json"
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def require(*, node: bool) -> None:
    """ClusterError that names all that is missing for a plane (and a node); packages are installed first."""
    missing = []
    if os.geteuid() != 0:
        missing.append("root (network namespaces, mounts and cgroups): run as root")
    else:
        packages = PLANE_PACKAGES | (NODE_PACKAGES if node else {})
        missing += [f"{name}: install {packages[name]}" for name in _install(packages)]
        if _found("ip") and (why := _namespaces_fail()):
            missing.append(f"network namespaces: {why}")
        if node:
            if "overlay" not in Path("/proc/filesystems").read_text():
                missing.append("overlayfs in the kernel (/proc/filesystems): load the module overlay")
            if lacking := cgroups.missing():
                missing.append(lacking)
    if missing:
        raise ClusterError("this machine cannot run the test cluster; missing:\n  " + "\n  ".join(missing))


def _found(program: str) -> bool:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:{_PATH}") is not None


def _install(packages: dict[str, str]) -> list[str]:
    """Install what is not there, from Debian; the programs that are missing all the same."""
    lacking = [name for name in packages if not _found(name)]
    if lacking and _found("apt-get"):
        wanted = sorted({packages[name] for name in lacking})
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        for command in (["update", "-qq"], ["install", "-qq", "-y", "--no-install-recommends", *wanted]):
            done = subprocess.run(
                ["apt-get", *command], env=environment, capture_output=True, text=True, timeout=600
            )
            if done.returncode:
                raise ClusterError(f"apt-get {' '.join(command)}: {done.stderr.strip()[-2000:]}")
    return [name for name in lacking if not _found(name)]


def _namespaces_fail() -> str:
    probe = f"plait-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, timeout=30)
    subprocess.run(["ip", "netns", "del", probe], capture_output=True, timeout=30)
    return made.stderr.strip() if made.returncode else ""


def mounts_below(folder: Path) -> list[str]:
    """Mount points below `folder`, deepest first."""
    told = Path("/proc/self/mounts").read_text().splitlines()
    points = [line.split()[1].encode().decode("unicode_escape") for line in told]
    return sorted((point for point in points if point.startswith(f"{folder}/")), reverse=True)


def unmount_below(folder: Path) -> None:
    """Unmount all below `folder`. ClusterError when something stays: nothing may be removed then."""
    for point in mounts_below(folder):
        subprocess.run(["umount", point], capture_output=True, timeout=30)
    for point in mounts_below(folder):
        # Busy: nobody of ours uses it any more, so it goes when the kernel lets go of it.
        subprocess.run(["umount", "--lazy", point], capture_output=True, timeout=30)
    if left := mounts_below(folder):
        raise ClusterError(f"{folder}: cannot be unmounted: {', '.join(left[:5])}")


@contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold the lock file `path`. ClusterError where another holds it and `wait` is off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ClusterError(
                f"{path}: another process uses this cluster; "
                "fix: wait for it, or name another one by PLAIT_CLUSTER=<name>"
            ) from None
        yield


def save_sysctls(runs: Path, user: str) -> None:
    """Note the values that a kubelet will change; the first cluster notes, further ones only join."""
    with locked(runs / "sysctls.lock", wait=True):
        noted = _noted(runs)
        noted["users"] = sorted({*noted["users"], user})
        noted["values"] = noted["values"] or {
            name: value.read_text().strip()
            for name in _SYSCTLS
            if (value := Path("/proc/sys") / name).exists()
        }
        (runs / _SYSCTLS_SAVED).write_text(json.dumps(noted))


def restore_sysctls(runs: Path, user: str, others: Sequence[str]) -> None:
    """Put the values back once no other cluster is up. `others`: the names that still are."""
    with locked(runs / "sysctls.lock", wait=True):
        noted = _noted(runs)
        if user not in noted["users"]:
            return
        noted["users"] = sorted(set(noted["users"]) & set(others) - {user})
        if noted["users"]:
            (runs / _SYSCTLS_SAVED).write_text(json.dumps(noted))
            return
        for name, value in noted["values"].items():
            path = Path("/proc/sys") / name
            if path.read_text().strip() != value:
                path.write_text(value)
        (runs / _SYSCTLS_SAVED).unlink()


def _noted(runs: Path) -> dict[str, Any]:
    path = runs / _SYSCTLS_SAVED
    return json.loads(path.read_text()) if path.exists() else {"users": [], "values": {}}
