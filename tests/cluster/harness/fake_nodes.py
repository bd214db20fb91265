"""Nodes with eight H200 each that exist as objects only: kwok answers for their kubelets, see stages.yaml.

Their taint is the one that GPU nodes carry, so nothing lands there that does not ask for GPUs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tests.cluster.harness.api import Api, RefusedError
from tests.cluster.harness.components import Components
from tests.cluster.harness.instance import FAKE_PODS, Instance
from tests.cluster.harness.waiting import until

NAME: Final = "kwok"
MANAGED: Final = {"test.plait.dev/kwok": "true"}
"""Label by which kwok knows its nodes; without it a node falls silent."""
GPUS: Final = 8
RDMA: Final = "rdma/hca"
"""Extended resource of the RDMA devices, eight of them a node."""
TAINT: Final = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}

_STAGES: Final = Path(__file__).with_name("stages.yaml")


class FakeNodes:
    """Starts kwok, and adds and removes nodes."""

    def __init__(self, instance: Instance, binaries: Path, components: Components) -> None:
        self._instance = instance
        self._binaries = binaries
        self._components = components

    def start(self) -> None:
        """kwok runs and has read its stages when this returns."""
        flags = {
            "kubeconfig": self._instance.kubeconfig(),
            "config": _STAGES,
            "manage-all-nodes": "false",
            "manage-nodes-with-label-selector": ",".join(f"{k}={v}" for k, v in MANAGED.items()),
            "cidr": FAKE_PODS,
            "node-ip": "10.99.0.3",
            "server-address": "127.0.0.1:10247",
            "node-lease-duration-seconds": 40,
        }
        # Stages are read from the file alone: the CRDs of kwok are not installed.
        command = [str(self._binaries / "kwok"), *(f"--{k}={v}" for k, v in flags.items())]
        self._components.start(NAME, command)

    def add(self, api: Api, *names: str, labels: dict[str, str] | None = None, gpus: int = GPUS) -> None:
        """Nodes of these names, Ready when this returns. A name that is there already is left as it is."""
        for number, name in enumerate(names):
            try:
                api.create(node(name, zone=f"zone-{number % 3}", labels=labels, gpus=gpus))
            except RefusedError as refused:
                if refused.code != 409:
                    raise

        def ready() -> bool:
            self._components.must_live(NAME)
            told = {n["metadata"]["name"] for n in api.list("v1", "Node") if _is_ready(n)}
            return told >= set(names)

        until(
            ready,
            f"kwok nodes {', '.join(names[:5])} Ready",
            seconds=60,
            why_not=lambda: self._components.why(NAME),
        )

    def remove(self, api: Api, *names: str) -> None:
        """Take nodes away as a cloud does: the object goes, and its pods are collected some time after."""
        for name in names:
            api.delete("v1", "Node", name)


def node(name: str, *, zone: str, labels: dict[str, str] | None = None, gpus: int = GPUS) -> dict[str, Any]:
    """The manifest of one node."""
    capacity = {
        "cpu": "192",
        "memory": "2Ti",
        "pods": "250",
        "ephemeral-storage": "4Ti",
        "hugepages-2Mi": "64Gi",
    }
    capacity |= {"nvidia.com/gpu": str(gpus), RDMA: "8"}
    known = {
        **MANAGED,
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "topology.kubernetes.io/zone": zone,
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": "NVIDIA-H200",
        "nvidia.com/gpu.count": str(gpus),
        "nvidia.com/gpu.memory": "143771",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": known | (labels or {}),
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "spec": {"taints": [TAINT]},
        "status": {"capacity": capacity, "allocatable": capacity},
    }


def _is_ready(seen: dict[str, Any]) -> bool:
    conditions = (seen.get("status") or {}).get("conditions") or []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
