"""Requests and limits: quantities that agree with each other, and with the devices that are filled in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from plait.contract.violation import Violation, nearest
from plait_operator.api.spec import SharedKVDeploymentSpec
from plait_operator.validate.schema import check
from plait_operator.validate.wording import qualified, quantity

GPU: Final = "nvidia.com/gpu"

_PLAIN = ("cpu", "memory", "ephemeral-storage")
_HUGEPAGES = "hugepages-"


def resource_violations(spec: SharedKVDeploymentSpec) -> Iterator[Violation]:
    """Violations of the three `resources`."""
    for role, gpus, source in _gpus(spec):
        path = f"spec.{role}.resources"
        told: Mapping[str, Any] = getattr(spec, role).resources
        faults = list(_sound(told, path=path))
        yield from faults
        if faults:
            continue
        yield from _filled_in(told, GPU, gpus, source, path=path)
        if spec.transfer.rdma.resource and role != "router":
            count = spec.transfer.rdma.count
            source = f"spec.transfer.rdma.count = {count}"
            yield from _filled_in(told, spec.transfer.rdma.resource, count, source, path=path)


def _gpus(spec: SharedKVDeploymentSpec) -> Iterator[tuple[str, int, str]]:
    """(role, GPUs of one pod, what decides so)."""
    if spec.engine.device == "cpu":
        for role in ("prefill", "decode"):
            yield role, 0, "spec.engine.device = cpu"
    else:
        group, nodes = spec.prefill.context_parallel, spec.prefill.nodes_per_group
        source = f"spec.prefill.contextParallel = {group}"
        if nodes > 1:
            source += f" over spec.prefill.nodesPerGroup = {nodes}"
        yield "prefill", max(group // nodes, 1), source
        count = spec.decode.data_parallel
        yield "decode", count, f"spec.decode.dataParallel = {count}"
    yield "router", 0, "a router has no use for one"


def _sound(told: Mapping[str, Any], *, path: str) -> Iterator[Violation]:
    faults = list(check(dict(told), "V1ResourceRequirements", path=path))
    yield from faults
    if faults:
        return
    if told.get("claims"):
        reason = "devices come from the device plugin: the operator asks for them"
        yield Violation(f"{path}.claims", told["claims"], reason, "remove it")
    requests, limits = told.get("requests") or {}, told.get("limits") or {}
    for section, amounts in (("limits", limits), ("requests", requests)):
        for name, value in amounts.items():
            yield from _name(name, value, path=f"{path}.{section}.{name}")
    for name in requests.keys() & limits.keys():
        yield from _pair(name, requests[name], limits[name], path=f"{path}.requests.{name}")
    for name in sorted(requests.keys() - limits.keys()):
        if not _divisible(name):
            reason = "a resource that cannot be shared needs its limit"
            fix = f"write the same under limits: {name}: {requests[name]}"
            yield Violation(f"{path}.requests.{name}", requests[name], reason, fix)


def _name(name: str, value: object, *, path: str) -> Iterator[Violation]:
    if name in _PLAIN:
        return
    amount = quantity(value)
    if name.startswith(_HUGEPAGES):
        page = quantity(name.removeprefix(_HUGEPAGES))
        if not page:
            yield Violation(path, value, "no size of a huge page in its name", "for example hugepages-2Mi")
        elif amount is not None and amount % page:
            reason = f"not a whole number of pages of {name.removeprefix(_HUGEPAGES)}"
            yield Violation(path, value, reason, "a multiple of the page size")
        return
    if "/" not in name:
        close = nearest(name, (*_PLAIN, GPU))
        fix = f"did you mean {close}?" if close else f"one of {', '.join(_PLAIN)}, or DOMAIN/NAME"
        yield Violation(path, value, "no such resource", fix)
    elif why := qualified(name):
        yield Violation(path, value, why, "DOMAIN/NAME, for example nvidia.com/gpu")
    elif amount is not None and amount % 1:
        yield Violation(path, value, "devices cannot be cut into pieces", "a whole number")


def _pair(name: str, request: object, limit: object, *, path: str) -> Iterator[Violation]:
    asked, most = quantity(request), quantity(limit)
    if asked is None or most is None:
        return
    if not _divisible(name) and asked != most:
        yield Violation(path, request, f"must equal its limit ({limit})", f"write {limit}, or leave it out")
    elif asked > most:
        yield Violation(path, request, f"is above its limit ({limit})", f"at most {limit}, or a higher limit")


def _divisible(name: str) -> bool:
    return name in _PLAIN


def _filled_in(
    told: Mapping[str, Any], name: str, wanted: int, source: str, *, path: str
) -> Iterator[Violation]:
    """What the operator fills in may be written down, but only as it is."""
    for section in ("limits", "requests"):
        value = (told.get(section) or {}).get(name)
        if value is None or quantity(value) == wanted:
            continue
        reason = f"the operator fills it in, and each pod gets {wanted} ({source})"
        yield Violation(f"{path}.{section}.{name}", value, reason, "remove it, or change what decides it")
