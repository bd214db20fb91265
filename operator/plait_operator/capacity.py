"""What a deployment will hold, from its spec and the model's shape alone: contract, lengths, tokens."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

from plait.contract.families import FAMILIES
from plait.contract.kv import GroupContract, WireContract
from plait.contract.layouts import KvDtype, Layout, Split
from plait.contract.shape import ModelShape
from plait.contract.versions import plait_version
from plait.contract.violation import ContractError, Violation
from plait_operator.api.spec import SharedKVDeploymentSpec

_Choice = TypeVar("_Choice", bound=StrEnum)


def shape_of(spec: SharedKVDeploymentSpec, inspected: Mapping[str, Any] | None) -> ModelShape | None:
    """The model's shape: of its family, as written inline, or of the `config.json` that was read.

    None when the spec says neither and nothing was read yet (`inspected` None). Raises ContractError, with
    paths of the manifest, for an unknown family and for a shape with missing or malformed fields.
    """
    model = spec.model
    if model.family is not None:
        if model.family not in FAMILIES:
            known = ", ".join(FAMILIES)
            reason = "not a model family that Plait knows"
            fix = f"one of {known}; or leave it out, and config.json is read from the source"
            raise ContractError([Violation("spec.model.family", model.family, reason, fix)])
        return FAMILIES[model.family]
    if model.shape is not None:
        return _shape(model.shape, "spec.model.shape")
    return None if inspected is None else _shape(inspected, "config.json")


def kv_dtype_of(spec: SharedKVDeploymentSpec) -> KvDtype:
    """How KV is stored. A CPU engine stores float32 whatever the spec says, as the engine does of itself.

    Raises ContractError naming the field for a type that has no rows.
    """
    if spec.engine.device == "cpu":
        return KvDtype.FP32
    return _choice(KvDtype, spec.cache.dtype, "spec.cache.dtype")


def contract_of(spec: SharedKVDeploymentSpec, shape: ModelShape) -> GroupContract:
    """The contract that an engine of this deployment computes of itself once it runs.

    Raises ContractError for choices that have no place in a contract: the validator tells them all.
    """
    wire = WireContract.of(shape, kv_dtype=kv_dtype_of(spec), transfer_backend=spec.transfer.backend)
    return GroupContract(
        wire=wire,
        ranks=spec.prefill.context_parallel,
        split=_choice(Split, spec.cache.split, "spec.cache.split"),
        layout=_choice(Layout, spec.cache.layout, "spec.cache.layout"),
        engine_version=spec.engine.version,
        plait_version=plait_version(),
    )


def context_length_of(spec: SharedKVDeploymentSpec, shape: ModelShape) -> int:
    """Longest request in tokens: the spec's, or the model's own. 0 when neither says one."""
    return spec.model.context_length or shape.max_position_embeddings


def _shape(config: Mapping[str, Any], source: str) -> ModelShape:
    try:
        return ModelShape.from_config(config, source=source)
    except ContractError as error:
        # A path into the manifest is written with dots all the way.
        told = [
            v._replace(field=v.field.replace("spec.model.shape:", "spec.model.shape."))
            for v in error.violations
        ]
        raise ContractError(told) from None


def _choice(kind: type[_Choice], value: str, field: str) -> _Choice:
    known = [member.value for member in kind]
    if value in known:
        return kind(value)
    raise ContractError([Violation(field, value, "no such choice", f"one of {', '.join(known)}")])
