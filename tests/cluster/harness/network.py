"""The network namespace of a cluster: a bridge that is the node's address, and no way out of it."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

from tests.cluster.harness.failure import ClusterError
from tests.cluster.harness.instance import DNS_SERVICE, NODE, NODE_IP, SERVICES, Instance

_CLONE_NEWNET = 0x40000000


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise ClusterError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def create(instance: Instance) -> None:
    """Make the namespace with lo and a bridge that has NODE_IP and the route of the services' addresses."""
    name = instance.netns
    _ip("netns", "add", name)
    _ip("-n", name, "link", "set", "lo", "up")
    _ip("-n", name, "link", "add", NODE, "type", "bridge")
    _ip("-n", name, "addr", "add", f"{NODE_IP}/24", "dev", NODE)
    _ip("-n", name, "link", "set", NODE, "up")
    # No default route: a process of the node needs one to reach a Service (its address changes in OUTPUT).
    _ip("-n", name, "route", "add", SERVICES, "dev", NODE)
    sysctl(instance, "net.ipv4.ip_forward", "1")
    # For `ip netns exec`: names of the cluster resolve in there once the node has its DNS.
    resolv = Path("/etc/netns") / name / "resolv.conf"
    resolv.parent.mkdir(parents=True, exist_ok=True)
    resolv.write_text(f"search svc.cluster.local cluster.local\nnameserver {DNS_SERVICE}\noptions ndots:5\n")


def exists(instance: Instance) -> bool:
    return (Path("/run/netns") / instance.netns).exists()


def delete(instance: Instance) -> None:
    """Remove it. Its links and rules go with the last process in it."""
    if exists(instance):
        _ip("netns", "del", instance.netns)
    folder = Path("/etc/netns") / instance.netns
    if folder.exists():
        (folder / "resolv.conf").unlink(missing_ok=True)
        folder.rmdir()


def sysctl(instance: Instance, name: str, value: str) -> None:
    """Set a value of the namespace."""
    done = subprocess.run(
        [*inside(instance), "sysctl", "-qw", f"{name}={value}"], capture_output=True, text=True, timeout=30
    )
    if done.returncode:
        raise ClusterError(f"sysctl {name}={value} in {instance.netns}: {done.stderr.strip()}")


def inside(instance: Instance) -> list[str]:
    """Words before a command that run it in the namespace, its mounts and cgroups left as they are."""
    return ["nsenter", f"--net=/run/netns/{instance.netns}"]


def enter(instance: Instance) -> None:
    """Move this thread, and those it starts from now on, into the namespace. There is no way back.

    For a test process: it then talks to the API server and to pods as a program on the node would.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.open(f"/run/netns/{instance.netns}", os.O_RDONLY)
    try:
        if libc.setns(handle, _CLONE_NEWNET):
            number = ctypes.get_errno()
            raise ClusterError(f"setns {instance.netns}: {os.strerror(number)}")
    finally:
        os.close(handle)
