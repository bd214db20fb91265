"""Where engine pods may run, and what of a node they get."""

from __future__ import annotations

import copy
from typing import Any, Final

from plait.contract.layouts import TransferBackend
from plait_operator.api.spec import Decode, Prefill, SharedKVDeploymentSpec
from plait_operator.observed import Manifest

GPU: Final = "nvidia.com/gpu"
PRODUCT: Final = {"nvidia.com/gpu.product": "NVIDIA-H200"}
"""What sizes and kernels were chosen for; a role's podTemplate.spec.nodeSelector takes its place."""


def side(spec: SharedKVDeploymentSpec, role: str) -> Prefill | Decode:
    """The section of `role`: prefill or decode. Raises ValueError for another."""
    if role == "prefill":
        return spec.prefill
    if role == "decode":
        return spec.decode
    raise ValueError(f"role={role!r}: engines are prefill or decode")


def gpus(spec: SharedKVDeploymentSpec, role: str) -> int:
    """GPUs of one pod of `role`; 0 on a CPU."""
    if spec.engine.device == "cpu":
        return 0
    if role == "prefill":
        return max(spec.prefill.context_parallel // spec.prefill.nodes_per_group, 1)
    return spec.decode.data_parallel


def rdma(spec: SharedKVDeploymentSpec) -> bool:
    """Whether pages travel by RDMA."""
    return spec.engine.device == "cuda" and spec.transfer.backend == TransferBackend.MOONCAKE.value


def resources(spec: SharedKVDeploymentSpec, role: str) -> Manifest:
    """`resources` of the engine: the role's own, with GPUs and RDMA devices in the limits.

    Extended resources are limits only: their requests are the same by definition.
    """
    told: dict[str, Any] = copy.deepcopy(side(spec, role).resources)
    devices: dict[str, str] = {}
    if count := gpus(spec, role):
        devices[GPU] = str(count)
    if rdma(spec) and spec.transfer.rdma.resource:
        devices[spec.transfer.rdma.resource] = str(spec.transfer.rdma.count)
    if devices:
        told["limits"] = {**(told.get("limits") or {}), **devices}
    return told


def placement(spec: SharedKVDeploymentSpec) -> Manifest:
    """Fields of a pod's spec that choose its node.

    Pods are not spread over the nodes: small decode pods on every node would leave no node with all of its
    GPUs free for a prefill group.
    """
    if spec.engine.device == "cpu":
        return {}
    return {
        "nodeSelector": dict(PRODUCT),
        "tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}],
    }
