"""A manifest's JSON -> the deployment, and all that is wrong with it: form, rules and contract together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from plait.contract.families import FAMILIES
from plait.contract.shape import ModelShape
from plait.contract.violation import ContractError, Violation
from plait_operator.api.base import API_VERSION
from plait_operator.api.resource import Meta, SharedKVDeployment
from plait_operator.api.spec import SharedKVDeploymentSpec, SharedKVRoleSpec
from plait_operator.api.status import SharedKVDeploymentStatus
from plait_operator.validate.form import read_form
from plait_operator.validate.spec import validate_spec
from plait_operator.validate.wording import INT32, service_name

KIND = "SharedKVDeployment"
MOST_VALUES = 4000
MOST_ARGUMENTS = 100
_ENOUGH = 1_000_000


def read(
    body: Mapping[str, Any],
    *,
    shape: ModelShape | None = None,
    experimental: frozenset[str] = frozenset(),
) -> tuple[SharedKVDeployment | None, list[Violation]]:
    """The deployment in `body`, and every violation of form and contract.

    The deployment is None when `body` has faults of form: then nothing can be planned from it. It is given
    beside violations of the contract. `shape`: the model's as it was inspected (None: a family's or the
    manifest's own is found here).
    """
    told = body.get("spec")
    if large := _size(told):
        return None, large
    found = [*_kind(body), *_name(body)]
    form = read_form(told, SharedKVDeploymentSpec)
    spec: SharedKVDeploymentSpec = form.spec
    rules = validate_spec(spec, shape=shape_in(spec) or shape, experimental=experimental)
    found += [*form.faults, *(v for v in rules if not form.hides(v.field))]
    metadata = _metadata(body.get("metadata"))
    found += metadata
    if form.faults or metadata:
        return None, found
    status = body.get("status")
    raw: Mapping[str, Any] = status if isinstance(status, Mapping) else {}
    return SharedKVDeployment(meta=Meta.of(body), spec=spec, status=_status(raw), status_raw=raw), found


def shape_in(spec: SharedKVDeploymentSpec) -> ModelShape | None:
    """The model's shape as far as the manifest itself tells it soundly: of a family, or inline."""
    if spec.model.family is not None:
        return FAMILIES.get(spec.model.family)
    if spec.model.shape is None:
        return None
    try:
        return ModelShape.from_config(spec.model.shape)
    except ContractError:
        return None


def read_role(body: Mapping[str, Any]) -> list[Violation]:
    """Every violation of a SharedKVRole."""
    form = read_form(body.get("spec"), SharedKVRoleSpec)
    found = list(form.faults)
    if form.spec.replicas > INT32:
        reason = "is more than Kubernetes counts"
        found.append(Violation("spec.replicas", form.spec.replicas, reason, f"at most {INT32}"))
    return found


def read_replicas(body: Mapping[str, Any]) -> list[Violation]:
    """Every violation of a Scale (autoscaling/v1) of one of the resources."""
    spec = body.get("spec")
    replicas = spec.get("replicas", 0) if isinstance(spec, Mapping) else None
    if type(replicas) is int and 0 <= replicas <= INT32:
        return []
    reason = "must be a whole number of pods that Kubernetes can count"
    return [Violation("spec.replicas", replicas, reason, f"0 to {INT32}")]


def _size(spec: object) -> list[Violation]:
    """What no manifest needs, and what would take long to check: the nearest name is sought for each key."""
    values = _count(spec)
    if values > MOST_VALUES:
        return [Violation("spec", None, f"has {values} values", f"at most {MOST_VALUES}")]
    found = []
    for section in ("engine", "prefill", "decode"):
        told = spec.get(section) if isinstance(spec, Mapping) else None
        args = told.get("args") if isinstance(told, Mapping) else None
        if isinstance(args, Mapping) and len(args) > MOST_ARGUMENTS:
            reason = f"has {len(args)} arguments"
            found.append(Violation(f"spec.{section}.args", None, reason, f"at most {MOST_ARGUMENTS}"))
    return found


def _count(value: object) -> int:
    count, todo = 0, [value]
    while todo and count <= _ENOUGH:
        node = todo.pop()
        count += 1
        if isinstance(node, Mapping):
            todo += node.values()
        elif isinstance(node, list):
            todo += node
    return count


def _status(raw: Mapping[str, Any]) -> SharedKVDeploymentStatus:
    try:
        return SharedKVDeploymentStatus.model_validate(raw)
    except ValidationError:
        # Nobody's to mend but the operator's, which writes it anew.
        return SharedKVDeploymentStatus()


def _metadata(told: object) -> list[Violation]:
    if not isinstance(told, Mapping):
        reason = "is missing" if told is None else "must be a mapping"
        return [Violation("metadata", told, reason, "metadata with a name")]
    kinds = {"labels": Mapping, "annotations": Mapping, "finalizers": list}
    return [
        Violation(f"metadata.{name}", told[name], "has another form than Kubernetes gives it", "correct it")
        for name, kind in kinds.items()
        if told.get(name) is not None and not isinstance(told[name], kind)
    ]


def _kind(body: Mapping[str, Any]) -> list[Violation]:
    wanted = {"apiVersion": API_VERSION, "kind": KIND}
    return [
        Violation(field, body.get(field), "not a manifest that Plait reads", f"{field}: {value}")
        for field, value in wanted.items()
        if body.get(field) != value
    ]


def _name(body: Mapping[str, Any]) -> list[Violation]:
    metadata = body.get("metadata")
    if not isinstance(metadata, Mapping):
        return []  # told of metadata as a whole
    name = metadata.get("name")
    if name is None and metadata.get("generateName"):
        return []  # the API server makes the name after admission, and the CRD's rule sees it
    if name is None or name == "":
        return [Violation("metadata.name", name, "is missing", "write a name")]
    if not isinstance(name, str):
        return [Violation("metadata.name", name, "must be a text", "a name, in quotes if it is a number")]
    if why := service_name(name):
        return [Violation("metadata.name", name, f"names a Service: {why}", "a shorter or plainer name")]
    return []
