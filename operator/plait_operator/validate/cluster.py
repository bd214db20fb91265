"""What a spec says about devices, networks, images and names of other objects in the cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator

from plait.contract.layouts import TransferBackend
from plait.contract.violation import Violation
from plait_operator.api.spec import SharedKVDeploymentSpec
from plait_operator.validate.contract import DTYPES
from plait_operator.validate.resources import GPU
from plait_operator.validate.wording import image, object_name, qualified

_DEVICE = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)


def image_violations(spec: SharedKVDeploymentSpec) -> Iterator[Violation]:
    """References of images that no container runtime would take."""
    for place in ("engine", "runtime", "prefill", "decode", "router"):
        told: str | None = getattr(spec, place).image
        if told is not None and (why := image(told)):
            fix = "NAME:TAG or NAME@sha256:DIGEST, for example lmsysorg/sglang:v0.5.17"
            yield Violation(f"spec.{place}.image", told, why, fix)


def cache_violations(spec: SharedKVDeploymentSpec) -> Iterator[Violation]:
    """What of spec.cache the contract itself does not know."""
    cache = spec.cache
    if cache.host_tier.enabled:
        reason = "the host tier does not know page owners yet"
        yield Violation("spec.cache.hostTier.enabled", True, reason, "false")
    if cache.dtype not in DTYPES:
        reason = "the row bytes of no other KV storage type are part of the contract"
        yield Violation("spec.cache.dtype", cache.dtype, reason, f"one of {', '.join(DTYPES)}")
    if cache.peer_access == "required" and spec.engine.device == "cpu":
        reason = "there is no GPU memory to map (spec.engine.device = cpu)"
        yield Violation("spec.cache.peerAccess", cache.peer_access, reason, "auto")
    if cache.peer_access == "required" and spec.prefill.nodes_per_group > 1:
        reason = "peer mapping ends at the host, and a group spans spec.prefill.nodesPerGroup hosts"
        yield Violation("spec.cache.peerAccess", cache.peer_access, reason, "auto, or groups of one node")


def group_violations(spec: SharedKVDeploymentSpec) -> Iterator[Violation]:
    """Groups over several nodes: equal shares, and GPUs."""
    ranks, nodes = spec.prefill.context_parallel, spec.prefill.nodes_per_group
    if ranks % nodes:
        reason = f"every node of a group has as many ranks, and {nodes} does not divide {ranks}"
        fix = "a divisor of spec.prefill.contextParallel"
        yield Violation("spec.prefill.nodesPerGroup", nodes, reason, fix)


def transfer_violations(spec: SharedKVDeploymentSpec) -> Iterator[Violation]:
    """The transfer backend against devices; unknown backends are the contract's."""
    path, rdma, backend = "spec.transfer.rdma", spec.transfer.rdma, spec.transfer.backend
    if backend == TransferBackend.MOONCAKE and spec.engine.device == "cpu":
        reason = "it needs RDMA and GPU memory (spec.engine.device = cpu)"
        yield Violation("spec.transfer.backend", backend, reason, TransferBackend.MOONCAKE_TCP.value)
    if backend == TransferBackend.MOONCAKE_TCP:
        reason = "spec.transfer.backend = mooncake_tcp uses no RDMA device"
        fix = "remove it, or use the backend mooncake"
        if rdma.resource is not None:
            yield Violation(f"{path}.resource", rdma.resource, reason, fix)
        if rdma.devices:
            yield Violation(f"{path}.devices", rdma.devices, reason, fix)
    if rdma.resource is not None:
        if "/" not in rdma.resource or qualified(rdma.resource):
            reason = "not the name of a device plugin's resource, which is DOMAIN/NAME"
            yield Violation(f"{path}.resource", rdma.resource, reason, "for example rdma/hca")
        elif rdma.resource == GPU:
            reason = "these are the GPUs, which are asked for already"
            yield Violation(f"{path}.resource", rdma.resource, reason, "for example rdma/hca")
    elif rdma.count != 1:
        reason = "a number of nothing: spec.transfer.rdma.resource is not given"
        yield Violation(f"{path}.count", rdma.count, reason, "name the resource, or remove it")
    for number, device in enumerate(rdma.devices):
        if not _DEVICE.fullmatch(device):
            reason = "not the name of an RDMA device"
            yield Violation(f"{path}.devices[{number}]", device, reason, "for example mlx5_0")
        elif device in rdma.devices[:number]:
            yield Violation(f"{path}.devices[{number}]", device, "is written twice", "keep one of the two")


def pods_violations(spec: SharedKVDeploymentSpec) -> Iterator[Violation]:
    """Names in spec.pods."""
    seen: set[str] = set()
    for number, reference in enumerate(spec.pods.image_pull_secrets):
        path = f"spec.pods.imagePullSecrets[{number}].name"
        if why := object_name(reference.name):
            yield Violation(path, reference.name, why, "the name of a Secret")
        elif reference.name in seen:
            yield Violation(path, reference.name, "is written twice", "keep one of the two")
        seen.add(reference.name)
    name = spec.pods.priority_class_name
    if name is not None and (why := object_name(name)):
        yield Violation("spec.pods.priorityClassName", name, why, "the name of a PriorityClass")
