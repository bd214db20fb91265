"""Volumes of an engine's pod, and where its containers mount them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

from plait.contract.contract_file import CONTRACT_FILE
from plait_operator.api.spec import ModelSource, SharedKVDeploymentSpec
from plait_operator.observed import Manifest

RUNTIME: Final = "/plait"
"""The injected tree: the init container `runtime` fills it, everything else reads it."""
MODEL: Final = "/model"
HUB: Final = "/hub"
STATE: Final = "/run/plait"
CONTRACT: Final = "/etc/plait"
CONTRACT_PATH: Final = f"{CONTRACT}/{CONTRACT_FILE}"

SHM_LIMIT: Final = {"cuda": "32Gi", "cpu": "1Gi"}
SHM_LEAST: Final = {"cuda": 1 << 30, "cpu": 256 << 20}
"""Bytes below which an engine is known to fail late. A pod's memory limit makes its /dev/shm smaller too."""


class Mounted(NamedTuple):
    """Volumes, and the mounts that both the preflight and the engine have of them."""

    volumes: list[Manifest]
    mounts: list[Manifest]


def of(spec: SharedKVDeploymentSpec, resources: Mapping[str, Any], *, contract_map: str) -> Mounted:
    """Of a pod whose engine container has these `resources`; `contract_map` names its ConfigMap."""
    told = [
        # pip's tree without torch: tens of MB.
        (_empty("plait", sizeLimit="1Gi"), _mount("plait", RUNTIME, read_only=True)),
        (
            {"name": "contract", "configMap": {"name": contract_map}},
            _mount("contract", CONTRACT, read_only=True),
        ),
        (_empty("tmp"), _mount("tmp", "/tmp")),
        # Every rank renews a small file some times a second: no work for a disk.
        (_empty("state", medium="Memory", sizeLimit="64Mi"), _mount("state", STATE)),
        # NCCL and the engine's processes pass tensors there, and the runtime's default is 64 MiB.
        (
            _empty("shm", medium="Memory", sizeLimit=SHM_LIMIT[spec.engine.device]),
            _mount("shm", "/dev/shm"),
        ),
        model(spec.model.source),
        *_huge_pages(resources),
    ]
    return Mounted([volume for volume, _ in told], [mount for _, mount in told])


def model_path(source: ModelSource) -> str:
    """What `--model-path` names: a folder in the pod, or the hub's repository."""
    if source.hub is not None:
        return source.hub.repo
    if source.pvc is not None:
        return str(PurePosixPath(MODEL) / source.pvc.path.strip("/"))
    return MODEL


def model(source: ModelSource) -> tuple[Manifest, Manifest]:
    """The volume that holds the model, and its mount."""
    if source.hub is not None:
        # Kept over restarts of the container, not of the pod.
        return _empty("model"), _mount("model", HUB)
    if source.pvc is not None:
        claim = {"claimName": source.pvc.claim_name, "readOnly": True}
        return {"name": "model", "persistentVolumeClaim": claim}, _mount("model", MODEL, read_only=True)
    if source.host_path is not None:
        # Directory: a node without the weights says so, rather than give an empty folder.
        path = {"path": source.host_path.path, "type": "Directory"}
        return {"name": "model", "hostPath": path}, _mount("model", MODEL, read_only=True)
    raise ValueError("spec.model.source names no source: a spec is validated before pods are made of it")


def _huge_pages(resources: Mapping[str, Any]) -> list[tuple[Manifest, Manifest]]:
    """Mounted where the role's resources ask for them.

    None are asked for by themselves: mooncake registers GPU memory, and a request for huge pages that a node
    has not set aside would keep the pod from ever being placed.
    """
    limits = resources.get("limits")
    asked = limits if isinstance(limits, Mapping) else {}
    sizes = sorted(str(name).partition("-")[2] for name in asked if str(name).startswith("hugepages-"))
    return [
        (
            _empty(f"hugepages-{size.lower()}", medium=f"HugePages-{size}"),
            _mount(f"hugepages-{size.lower()}", f"/dev/hugepages-{size}"),
        )
        for size in sizes
    ]


def _empty(name: str, **source: str) -> Manifest:
    return {"name": name, "emptyDir": source}


def _mount(name: str, path: str, *, read_only: bool = False) -> Manifest:
    told: Manifest = {"name": name, "mountPath": path}
    return {**told, "readOnly": True} if read_only else told
