"""Engine arguments of a spec: which the operator sets itself, and a role's own over the shared ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from plait.contract.layouts import Role
from plait.contract.validate import KNOWN_VERSIONS, engine_args
from plait.contract.validate.argv import field_of
from plait.contract.violation import Violation
from plait_operator.api.spec import SharedKVDeploymentSpec

_SHARED: Final = "spec.engine.args"


class Owned(NamedTuple):
    """An argument that the operator sets. `place`: where the manifest says it (empty: nowhere).

    `decode`: why decode has no such place, where it is prefill's alone.
    """

    place: str = ""
    why: str = "the operator sets this argument itself"
    decode: str = ""


_ONE_GPU = "a decode engine has one GPU"
_PORT = Owned(why="ports are fixed, since Services and probes name them")
_ROLE = Owned(why="the role decides it")
_BACKEND = Owned(why="Plait hooks one attention backend, and the operator names it")
_NODES = Owned("spec.prefill.nodesPerGroup", decode=_ONE_GPU)
_RANKS = Owned("spec.prefill.contextParallel", decode=_ONE_GPU)
_DEVICES = Owned(why="a pod sees no GPUs but its own")

OWNED: Final[dict[str, Owned]] = {
    "model_path": Owned("spec.model.source"),
    "served_model_name": Owned("spec.model.name"),
    "revision": Owned("spec.model.revision"),
    "context_length": Owned("spec.model.contextLength"),
    "device": Owned("spec.engine.device"),
    "host": _PORT,
    "port": _PORT,
    "nccl_port": _PORT,
    "disaggregation_bootstrap_port": _PORT,
    "api_key": Owned("spec.router.auth", "clients reach engines through the router, which asks for keys"),
    "page_size": Owned("spec.cache.pageSize"),
    "kv_cache_dtype": Owned("spec.cache.dtype"),
    "attention_backend": _BACKEND,
    "prefill_attention_backend": _BACKEND,
    "decode_attention_backend": _BACKEND,
    "disaggregation_mode": _ROLE,
    "disaggregation_transfer_backend": Owned("spec.transfer.backend"),
    "disaggregation_ib_device": Owned("spec.transfer.rdma.devices"),
    "tp_size": _RANKS,
    "attn_cp_size": _RANKS,
    "enable_prefill_cp": _ROLE,
    "cp_strategy": Owned("spec.cache.split"),
    "dp_size": Owned("spec.decode.dataParallel"),
    "nnodes": _NODES,
    "node_rank": _NODES,
    "dist_init_addr": _NODES,
    "base_gpu_id": _DEVICES,
    "gpu_id_step": _DEVICES,
}
"""Field of ServerArgs -> who says it instead."""

OWNED_OF_PREFILL: Final[dict[str, Owned]] = {
    "chunked_prefill_size": Owned("spec.prefill.chunk"),
    "max_total_tokens": Owned("spec.prefill.maxTotalTokens"),
}
"""As OWNED, for prefill alone: decode takes them in spec.decode.args."""


class Argument(NamedTuple):
    """One argument of a role: the key as it was written, its value, and its path in the manifest."""

    key: str
    value: Any
    path: str


class Arguments(NamedTuple):
    """Arguments of both roles that the operator does not set itself, and what is wrong with the rest."""

    prefill: tuple[Argument, ...]
    decode: tuple[Argument, ...]
    refused: tuple[Violation, ...]


def arguments(spec: SharedKVDeploymentSpec) -> Arguments:
    """Each role's arguments over the shared ones. Unknown names are left in: the contract tells."""
    refused: list[Violation] = []
    shared = _read(spec.engine.args, _SHARED, OWNED | OWNED_OF_PREFILL, refused)
    own = {
        Role.PREFILL: _read(spec.prefill.args, "spec.prefill.args", OWNED | OWNED_OF_PREFILL, refused),
        Role.DECODE: _read(spec.decode.args, "spec.decode.args", OWNED, refused),
    }
    return Arguments(
        prefill=_over(shared, own[Role.PREFILL]),
        decode=_over(shared, own[Role.DECODE]),
        refused=tuple(refused),
    )


def field_name(key: str) -> str:
    """The ServerArgs field that `key` names, or `key` itself where there is none."""
    return field_of(key, engine_args(KNOWN_VERSIONS[-1])) or key


def _read(
    given: Mapping[str, Any], path: str, owned: Mapping[str, Owned], refused: list[Violation]
) -> list[Argument]:
    kept = []
    for key, value in given.items():
        name = field_name(key)
        if name not in owned:
            kept.append(Argument(key, value, f"{path}.{key}"))
            continue
        place, why, no_decode = owned[name]
        fix = f"remove it; its place is {place}" if place else "remove it"
        if no_decode and path == "spec.decode.args":
            fix = f"{no_decode}; remove it"
        elif no_decode and path == _SHARED:
            fix += f" for prefill; {no_decode}"
        elif path == _SHARED and name in OWNED_OF_PREFILL:
            fix += " for prefill, and spec.decode.args for decode"
        refused.append(Violation(f"{path}.{key}", value, why, fix))
    return kept


def _over(shared: list[Argument], own: list[Argument]) -> tuple[Argument, ...]:
    mine = {field_name(argument.key) for argument in own}
    return (*(argument for argument in shared if field_name(argument.key) not in mine), *own)
