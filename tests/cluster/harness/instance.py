"""Which cluster: its name, and every path, namespace and address that follows from the name."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

NODE_IP: Final = "10.99.0.2"
"""Address of apiserver and kubelet. The same in every cluster: each has a network namespace of its own."""
API: Final = f"https://{NODE_IP}:6443"
ETCD: Final = "http://127.0.0.1:2379"
SERVICES: Final = "10.96.0.0/16"
KUBERNETES_SERVICE: Final = "10.96.0.1"
DNS_SERVICE: Final = "10.96.0.10"
PODS: Final = "10.244.0.0/16"
"""Addresses of the real node's pods."""
FAKE_PODS: Final = "10.245.0.0/16"
"""Addresses that kwok gives to its pods; nobody answers there."""
NODE: Final = "node0"

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?")
# containerd's socket lies below the run folder, and a socket's path holds 108 bytes.
_LONGEST_RUN: Final = 70


@dataclass(frozen=True)
class Instance:
    """One cluster. Two of different names can run side by side.

    `run`: folder of its certificates, logs, sockets and data, removed when it stops.
    """

    name: str
    run: Path

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"cluster name {self.name!r}: 1 to 20 lower-case letters, digits and dashes")
        if len(str(self.run)) > _LONGEST_RUN:
            raise ValueError(
                f"run folder {self.run}: over {_LONGEST_RUN} characters, sockets below it cannot be made"
            )

    @classmethod
    def of_environment(cls) -> Instance:
        """PLAIT_CLUSTER names it (default: tests), PLAIT_CLUSTER_RUN is the folder of all run folders."""
        name = os.environ.get("PLAIT_CLUSTER") or "tests"
        runs = Path(os.environ.get("PLAIT_CLUSTER_RUN") or "/var/tmp/plait-cluster")
        return cls(name, runs / name)

    @property
    def netns(self) -> str:
        """Name of the network namespace."""
        return f"plait-{self.name}"

    @property
    def cgroup(self) -> str:
        """Its folder in every cgroup hierarchy, from the root on: `/plait-<name>`."""
        return f"/plait-{self.name}"

    @property
    def lock(self) -> Path:
        """Held by whoever uses the cluster; outside `run`, which comes and goes."""
        return self.run.parent / f"{self.name}.lock"

    @property
    def certificates(self) -> Path:
        return self.run / "pki"

    @property
    def logs(self) -> Path:
        return self.run / "log"

    @property
    def pids(self) -> Path:
        return self.run / "pids"

    @property
    def containerd(self) -> Path:
        return self.run / "containerd"

    @property
    def socket(self) -> Path:
        """containerd's."""
        return self.containerd / "c.sock"

    def kubeconfig(self, user: str = "admin") -> Path:
        """File of `user`: admin, controller-manager, scheduler, proxy, kubelet."""
        return self.run / "kubeconfig" / user
