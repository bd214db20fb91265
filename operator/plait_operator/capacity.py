"""What a deployment will hold, from its spec and the model's shape alone: contract, lengths, tokens.

The estimate of a GPU's KV bytes: memory · fraction - weights. Memory is the card's; the fraction is the
engine's own default (`plait.contract.gpu_memory`), or `mem_fraction_static` where it is written; weights are
estimated from the shape (`plait.contract.weights`). Of a decode pod only the weights are reckoned, with the
least reserve.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from plait.contract.capacity import (
    GatherBy,
    pages_of_pool,
    plan_memory,
    pool_bytes,
    scratch_for,
    set_aside,
    tokens_for_bytes,
)
from plait.contract.families import FAMILIES
from plait.contract.gpu_memory import GPU_MEMORY, LEAST_RESERVE, engine_bytes, prefill_reserve
from plait.contract.kv import GroupContract, WireContract
from plait.contract.layouts import KvDtype, Layout, Split
from plait.contract.shape import ModelShape
from plait.contract.validate.engine import RANKS
from plait.contract.versions import ANY_VERSION, plait_version
from plait.contract.violation import ContractError, Violation
from plait.contract.weights import bytes_per_rank
from plait_operator.api.spec import Decode, Prefill, SharedKVDeploymentSpec
from plait_operator.api.status import Capacity

_GIB = 1 << 30
GPU_LABEL = "nvidia.com/gpu.product"
DEFAULT_GPU = "NVIDIA-H200"
_AMPLE = 1 << 60
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
    """How KV is stored. A CPU engine stores bfloat16 whatever the spec says: its kernels read no packed FP8.

    Raises ContractError naming the field for a type that has no rows.
    """
    if spec.engine.device == "cpu":
        return KvDtype.BF16
    return _choice(KvDtype, spec.cache.dtype, "spec.cache.dtype")


def contract_of(spec: SharedKVDeploymentSpec, shape: ModelShape) -> GroupContract:
    """The contract that an engine of this deployment computes of itself once it runs.

    Where the spec names the runtime's image, the version in it is any: it stays while the operator goes from
    one release to the next, and pods that nothing changes for must not be replaced.

    Raises ContractError for choices that have no place in a contract: the validator tells them all.
    """
    wire = WireContract.of(shape, kv_dtype=kv_dtype_of(spec), transfer_backend=spec.transfer.backend)
    return GroupContract(
        wire=wire,
        ranks=spec.prefill.context_parallel,
        split=_choice(Split, spec.cache.split, "spec.cache.split"),
        layout=_choice(Layout, spec.cache.layout, "spec.cache.layout"),
        engine_version=spec.engine.version,
        plait_version=plait_version() if spec.runtime.image is None else ANY_VERSION,
    )


def gather_by(spec: SharedKVDeploymentSpec) -> GatherBy:
    """How the ranks of a prefill group reach each other's pages. auto counts on GPUs that map each other's
    memory, as those of a known product do on one host; what an engine does is in its own report.
    """
    alone = spec.cache.peer_access == "off" or spec.prefill.nodes_per_group > 1
    return GatherBy.COLLECTIVE if alone else GatherBy.PEER


def context_length_of(spec: SharedKVDeploymentSpec, shape: ModelShape) -> int:
    """Longest request in tokens: the spec's, or the model's own. 0 when neither says one."""
    return spec.model.context_length or shape.max_position_embeddings


def estimate(spec: SharedKVDeploymentSpec, shape: ModelShape) -> Capacity | None:
    """What one prefill group will hold, before an engine has told it.

    With `maxTotalTokens` the tokens are those. Without, they are what the GPU's memory leaves beside the
    weights; None where that cannot be told: on a CPU, on a GPU of unknown size (the prefill podTemplate asks
    for another product), and for weights of unknown size.
    Raises ContractError naming the field where a request of the context length cannot fit.
    """
    most = spec.prefill.max_total_tokens
    budget = _kv_budget(spec, shape)
    if budget is None and most is None:
        return None
    length = context_length_of(spec, shape)
    ranks, layers, rows = (
        spec.prefill.context_parallel,
        shape.num_hidden_layers,
        shape.rows(kv_dtype_of(spec)),
    )
    if length < 1:
        reason = "neither the spec nor the model says how long a request may be"
        raise ContractError([Violation("spec.model.contextLength", None, reason, "a number of tokens")])
    if budget is not None and budget <= 0:
        raise ContractError([_weights_alone(spec, shape)])
    try:
        plan = plan_memory(
            _AMPLE if budget is None else budget,
            layout=_choice(Layout, spec.cache.layout, "spec.cache.layout"),
            ranks=ranks,
            layers=layers,
            rows=rows,
            context_length=length,
            chunk=spec.prefill.chunk,
            by=gather_by(spec),
            scratch_tokens=spec.cache.scratch_tokens,
            max_tokens=most,
        )
    except ContractError as error:
        raise ContractError([_in_manifest(v, length=length) for v in error.violations]) from None
    pool = plan.pool_bytes
    return Capacity(
        bytes_per_rank=plan.total_bytes,
        tokens_shared=tokens_for_bytes(
            pool, ranks=ranks, layers=layers, row=rows.total, layout=Layout.SHARED
        ),
        tokens_replicated=plan.tokens_replicated,
        max_context=plan.longest,
        max_concurrent=plan.tokens // plan.longest,
        source="estimated",
    )


def reported(spec: SharedKVDeploymentSpec, shape: ModelShape, *, tokens: int) -> Capacity:
    """What a prefill group holds that says it has a pool of `tokens`.

    Raises ContractError for choices that have no place in a contract, and for tokens that are no pool.
    """
    layout = _choice(Layout, spec.cache.layout, "spec.cache.layout")
    ranks, layers = spec.prefill.context_parallel, shape.num_hidden_layers
    rows = shape.rows(kv_dtype_of(spec))
    pages = pages_of_pool(tokens, ranks=ranks, field="the reported tokens")
    pool = pool_bytes(pages, ranks=ranks, layers=layers, row=rows.total, layout=layout)

    def held(other: Layout) -> int:
        return tokens_for_bytes(pool, ranks=ranks, layers=layers, row=rows.total, layout=other)

    length = max(context_length_of(spec, shape), 1)
    slot = spec.cache.scratch_tokens or scratch_for(context_length=length, chunk=spec.prefill.chunk)
    aside = set_aside(slot, row=rows.total, layers=layers, ranks=ranks, by=gather_by(spec))
    longest = min(length, tokens, slot)
    return Capacity(
        bytes_per_rank=pool + (aside.total if layout is Layout.SHARED else 0),
        tokens_shared=held(Layout.SHARED),
        tokens_replicated=held(Layout.REPLICATED),
        max_context=longest,
        max_concurrent=tokens // longest,
        source="reported",
    )


class DecodeWeights(NamedTuple):
    """Bytes of `weights` on each GPU of a decode pod, of the `room` that the engine gets of its `memory`.

    `gpu`: its product, as the node label has it.
    """

    weights: int
    room: int
    memory: int
    gpu: str

    @property
    def fits(self) -> bool:
        """Whether the weights leave anything for KV."""
        return self.weights < self.room

    @property
    def misfit(self) -> str:
        """Why they do not fit, and what does; empty where they do."""
        if self.fits:
            return ""
        weights, room, memory = (round(size / _GIB) for size in (self.weights, self.room, self.memory))
        return (
            f"the weights take about {weights} GiB, and a decode engine gets {room} of the {memory} GiB of "
            f"its one {self.gpu}; use a smaller checkpoint (spec.model.shape)"
        )


def decode_weights(spec: SharedKVDeploymentSpec, shape: ModelShape) -> DecodeWeights | None:
    """The weights of a decode pod, which loads the whole model on its own GPUs (`decode.dataParallel`).

    None where nothing can be told: on a CPU, on a GPU of unknown size (the decode podTemplate asks for
    another product), and for weights of unknown size.
    """
    role = spec.decode
    gpu = _gpu(role)
    memory = GPU_MEMORY.get(gpu)
    weights = bytes_per_rank(shape, ranks=role.data_parallel)
    if spec.engine.device != "cuda" or memory is None or weights is None:
        return None
    fraction = _written_fraction(role.args, spec.engine.args)
    room = engine_bytes(memory, reserve=LEAST_RESERVE, fraction=fraction)
    return DecodeWeights(weights, room, memory, gpu)


def active_tokens(capacity: Capacity, *, layout: str) -> int:
    """Tokens in the layout that the deployment uses."""
    return capacity.tokens_replicated if layout == Layout.REPLICATED else capacity.tokens_shared


def _kv_budget(spec: SharedKVDeploymentSpec, shape: ModelShape, *, ranks: int | None = None) -> int | None:
    """Bytes of one rank for pools and scratch together, None where they cannot be told.

    `ranks`: of the group, if not those of the spec.
    """
    if spec.engine.device != "cuda":
        return None
    ranks = spec.prefill.context_parallel if ranks is None else ranks
    memory = GPU_MEMORY.get(_gpu(spec.prefill))
    weights = bytes_per_rank(shape, ranks=ranks)
    if memory is None or weights is None:
        return None
    reserve = prefill_reserve(chunk=spec.prefill.chunk, ranks=ranks)
    fraction = _written_fraction(spec.prefill.args, spec.engine.args)
    return engine_bytes(memory, reserve=reserve, fraction=fraction) - weights


def _weights_alone(spec: SharedKVDeploymentSpec, shape: ModelShape) -> Violation:
    ranks = spec.prefill.context_parallel
    weights = bytes_per_rank(shape, ranks=ranks) or 0
    reason = (
        f"the weights alone take about {weights / 1e9:.0f} GB of each GPU, more than the engine gets of it"
    )
    ways = " or ".join(_lighter(spec, shape)) or "a smaller model"
    return Violation("spec.prefill.contextParallel", ranks, reason, ways)


def _lighter(spec: SharedKVDeploymentSpec, shape: ModelShape) -> Iterator[str]:
    """Ways to get the weights onto a group's GPUs, each of which would do."""
    now = spec.prefill.context_parallel
    if enough := _enough_ranks(spec, shape):
        yield f"{enough} ranks"
    if shape.quantization:
        return
    if enough := _enough_ranks(spec, replace(shape, quantization="fp8")):
        yield "an FP8 checkpoint of the model" + (f" on {enough} ranks" if enough > now else "")


def _enough_ranks(spec: SharedKVDeploymentSpec, shape: ModelShape) -> int | None:
    """The fewest ranks, no fewer than the spec's, whose GPUs hold the weights."""
    more = [ranks for ranks in RANKS if ranks >= spec.prefill.context_parallel]
    return next((ranks for ranks in more if (_kv_budget(spec, shape, ranks=ranks) or 0) > 0), None)


def _in_manifest(violation: Violation, *, length: int) -> Violation:
    """A refusal of `plan_memory` with the field of the manifest that has to give way."""
    if violation.field == "PLAIT_SCRATCH_TOKENS":
        return violation._replace(field="spec.cache.scratchTokens")
    if violation.field == "memory budget":
        reason = f"{violation.value} bytes per rank, by estimate: {violation.reason}"
        return violation._replace(field="spec.model.contextLength", value=length, reason=reason)
    return violation


def _gpu(role: Prefill | Decode) -> str:
    pod = role.pod_template.get("spec")
    wanted = pod.get("nodeSelector") if isinstance(pod, dict) else None
    if not isinstance(wanted, dict):
        return DEFAULT_GPU
    return str(wanted.get(GPU_LABEL, ""))


def _written_fraction(*arguments: Mapping[str, Any]) -> float | None:
    """`mem_fraction_static` of the first of `arguments` that has it."""
    for args in arguments:
        for key, value in args.items():
            if key.lstrip("-").replace("-", "_") == "mem_fraction_static" and isinstance(value, int | float):
                return float(value)
    return None


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
