"""Are the RDMA devices there, up, and given to this container?

sysfs shows the node's devices to every container; only a device file under /dev/infiniband makes one usable.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from plait.contract.verdict import CheckResult
from plait.pod.asked import Asked
from plait.pod.checks.result import bad, good, skipped

NAME = "rdma"
_ACTIVE = "ACTIVE"


class Device(NamedTuple):
    """One device. `ports`: state of each port in words; `given`: the container has its device file."""

    name: str
    ports: tuple[str, ...]
    given: bool

    @property
    def usable(self) -> bool:
        return self.given and _ACTIVE in self.ports


def check(asked: Asked) -> list[CheckResult]:
    """The named devices, or at least one where none is named."""
    if not asked.rdma:
        return [skipped(NAME, "transfers go over TCP")]
    return [judge(devices(asked.root), wanted=asked.rdma_devices)]


def judge(found: list[Device], *, wanted: tuple[str, ...]) -> CheckResult:
    """Every wanted device must be usable."""
    by_name = {device.name: device for device in found}
    value = ", ".join(f"{d.name} {'/'.join(d.ports) or 'no port'}" for d in found) or "none"
    if not wanted:
        if any(device.usable for device in found):
            return good(NAME, value)
        reason = "; ".join(_trouble(name, by_name) for name in by_name) or "the node shows no RDMA device"
        fix = "set transfer.rdma.resource to the device plugin's resource, or transfer.backend: mooncake_tcp"
        return bad(NAME, value, reason=reason, fix=fix)
    troubles = [_trouble(name, by_name) for name in wanted if name not in by_name or not by_name[name].usable]
    if not troubles:
        return good(NAME, value)
    fix = "name devices of transfer.rdma.devices that are up on every engine node, and ask for them"
    return bad(NAME, value, reason="; ".join(troubles), fix=fix)


def devices(root: Path) -> list[Device]:
    """All devices of the node, by name."""
    given = _given(root)
    folder = root / "sys/class/infiniband"
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    return [Device(name, _ports(folder / name), name in given) for name in names]


def _given(root: Path) -> set[str]:
    """Names of the devices whose device file this container has."""
    return {
        (entry / "ibdev").read_text().strip()
        for entry in sorted((root / "sys/class/infiniband_verbs").glob("uverbs*"))
        if (root / "dev/infiniband" / entry.name).exists() and (entry / "ibdev").exists()
    }


def _ports(device: Path) -> tuple[str, ...]:
    # A state reads "4: ACTIVE".
    files = sorted(device.glob("ports/*/state"))
    return tuple(file.read_text().strip().partition(": ")[2] or "unknown" for file in files)


def _trouble(name: str, found: dict[str, Device]) -> str:
    device = found.get(name)
    if device is None:
        return f"{name} is not on this node"
    if not device.given:
        return f"{name} is not given to this container (no /dev/infiniband/uverbs* of it)"
    return f"{name} has no active port ({'/'.join(device.ports) or 'none'})"
