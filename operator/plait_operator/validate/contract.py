"""A spec as the contract's own configuration, and the contract's violations as paths of the manifest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from typing import Any, NamedTuple

from plait.contract.arguments import flags_of
from plait.contract.config import (
    CacheConfig,
    DecodeConfig,
    EngineConfig,
    ModelConfig,
    PrefillConfig,
    StackConfig,
    TransferConfig,
)
from plait.contract.layouts import KvDtype
from plait.contract.shape import ModelShape
from plait.contract.validate import KNOWN_VERSIONS, engine_args, validate_stack
from plait.contract.validate.engine import RANKS
from plait.contract.validate.model import validate_model
from plait.contract.violation import ContractError, Violation
from plait_operator.api.spec import SharedKVDeploymentSpec
from plait_operator.validate.arguments import Argument, Arguments, arguments, field_name

DTYPES = (KvDtype.FP8_E4M3.value, KvDtype.BF16.value)
"""Choices of spec.cache.dtype."""
MULTI_HOST = "multi-host-groups"
"""Experimental feature of the operator that lets groups span nodes."""
EXPERIMENTAL = frozenset({MULTI_HOST})
"""Features that an operator may be told to let through."""

_FIXES = {
    "spec.engine.version": f"{' or '.join(KNOWN_VERSIONS)}, with an image of it",
    "spec.prefill.contextParallel": " or ".join(map(str, RANKS)),
    "spec.prefill.nodesPerGroup": "1",
    "spec.decode.dataParallel": "1, and more spec.decode.replicas",
}
"""What to write, where the contract's own fix speaks of arguments that the operator sets."""
_REASONS = {
    "spec.decode.dataParallel": "a decode engine has one GPU, and no test has shown more with Plait",
}
"""Why not, where the contract's own reason speaks of prefill groups."""
# Arguments that the contract derives from its own configuration, and may name in a reason.
_DERIVED = {
    "context_length": "spec.model.contextLength",
    "page_size": "spec.cache.pageSize",
    "kv_cache_dtype": "spec.cache.dtype",
    "attn_cp_size": "spec.prefill.contextParallel",
    "tp_size": "spec.prefill.contextParallel",
}
_SECTION = re.compile(r"\b(?:model|cache|prefill|decode|transfer|engine)\.[a-zA-Z][\w.]*")


class _Mapped(NamedTuple):
    """`sources`: path in the contract's configuration -> path in the manifest, where they differ."""

    config: StackConfig
    sources: Mapping[str, str]


def stack_config(spec: SharedKVDeploymentSpec) -> StackConfig:
    """What `plait check` would read of this deployment.

    Arguments that the operator sets itself are not taken from `args`. The model's folder is left out, for it
    is not on the machine that validates; so is a known family, whose shape is no file's.
    """
    return _mapped(spec, arguments(spec)).config


def contract_violations(
    spec: SharedKVDeploymentSpec, *, shape: ModelShape | None, experimental: frozenset[str]
) -> list[Violation]:
    """What the contract's validator says of `spec`. `shape`: of the model's family or as it was inspected."""
    args = arguments(spec)
    mapped = _mapped(spec, args)
    found = list(args.refused)
    for told in validate_stack(mapped.config):
        if told.field == "model.path" and told.value is None:
            continue  # the folder is in the pods
        if told.field == "prefill.args.nnodes" and MULTI_HOST in experimental:
            continue
        field = _place(told.field, mapped.sources)
        reason, fix = (_told(text, mapped.sources) for text in (told.reason, told.fix))
        reason = _REASONS.get(field, reason)
        value = spec.cache.scratch_tokens if field == "spec.cache.scratchTokens" else told.value
        found.append(Violation(field, value, reason, _FIXES.get(field, fix)))
    found += _without_a_flag(args, told={v.field for v in found})
    if shape is not None and spec.model.shape is None:
        path = "spec.model.family" if spec.model.family else "spec.model.source"
        found += [v._replace(field=path) for v in validate_model(shape, path=path)]
    return _once(found)


def _mapped(spec: SharedKVDeploymentSpec, args: Arguments) -> _Mapped:
    cpu = spec.engine.device == "cpu"
    sources = {f"{side}.args.{name}": at for side in ("prefill", "decode") for name, at in _DERIVED.items()}
    prefill: dict[str, Any] = {"chunked_prefill_size": spec.prefill.chunk}
    sources["prefill.args.chunked_prefill_size"] = "spec.prefill.chunk"
    if spec.prefill.max_total_tokens is not None:
        prefill["max_total_tokens"] = spec.prefill.max_total_tokens
        sources["prefill.args.max_total_tokens"] = "spec.prefill.maxTotalTokens"
    if spec.prefill.nodes_per_group != 1:
        prefill["nnodes"] = spec.prefill.nodes_per_group
        sources["prefill.args.nnodes"] = "spec.prefill.nodesPerGroup"
    decode: dict[str, Any] = {}
    if spec.decode.data_parallel != 1:
        decode["dp_size"] = spec.decode.data_parallel
        sources["decode.args.dp_size"] = "spec.decode.dataParallel"
    for side, given, own in (("prefill", args.prefill, prefill), ("decode", args.decode, decode)):
        _add(side, given, own, sources)
    dtype = spec.cache.dtype if spec.cache.dtype in DTYPES else KvDtype.FP8_E4M3.value
    config = StackConfig(
        model=ModelConfig(shape=spec.model.shape, context_length=spec.model.context_length),
        cache=CacheConfig(
            layout=spec.cache.layout,
            split=spec.cache.split,
            page_size=spec.cache.page_size,
            dtype="auto" if cpu else dtype,
            prefetch=spec.cache.prefetch,
            scratch_tokens=spec.cache.scratch_tokens,
        ),
        prefill=PrefillConfig(context_parallel=spec.prefill.context_parallel, args=prefill),
        # None at all is a legal scale of a deployment, and no stack.
        decode=DecodeConfig(replicas=max(spec.decode.replicas, 1), args=decode),
        transfer=TransferConfig(backend=spec.transfer.backend),
        engine=EngineConfig(version=spec.engine.version),
    )
    return _Mapped(config, sources)


def _add(side: str, given: tuple[Argument, ...], own: dict[str, Any], sources: dict[str, str]) -> None:
    for argument in given:
        own[argument.key] = argument.value
        sources[f"{side}.args.{argument.key}"] = argument.path


def _without_a_flag(args: Arguments, *, told: Set[str]) -> Iterator[Violation]:
    """Values that the command line cannot carry."""
    table = engine_args(KNOWN_VERSIONS[-1])
    for argument in (*args.prefill, *args.decode):
        name = field_name(argument.key)
        if argument.path in told or name not in table.fields:
            continue
        try:
            flags_of({name: argument.value}, table=table)
        except ContractError as error:
            yield from (v._replace(field=argument.path) for v in error.violations)


def _place(field: str, sources: Mapping[str, str]) -> str:
    return sources.get(field) or f"spec.{field}"


def _told(text: str, sources: Mapping[str, str]) -> str:
    """A reason or a fix, with the paths in it as the manifest has them."""
    return _SECTION.sub(lambda match: _place(match[0].rstrip("."), sources), text)


def _once(found: list[Violation]) -> list[Violation]:
    # Values may be lists; two equal violations are those that read the same.
    seen: dict[str, Violation] = {}
    for violation in found:
        seen.setdefault(str(violation), violation)
    return list(seen.values())
