"""Engine fields that may deviate from their default, but only so: the values that work, why, and the fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from plait.contract.layouts import PAGE_SIZE, Role, TransferBackend


class Constraint(NamedTuple):
    """Values that one field may hold. `reason` says why others may not, `fix` what to write."""

    allows: Callable[[object], bool]
    reason: str
    fix: str


class Together(NamedTuple):
    """A constraint on `field` that counts only while the field `other` holds `at`."""

    field: str
    other: str
    at: object
    rule: Constraint


def one_of(*values: object, reason: str) -> Constraint:
    """Exactly these values. None stands for: left to the engine."""
    named = [str(value) for value in values if value is not None]

    def allows(value: object) -> bool:
        return any(value is v or (value == v and type(value) is type(v)) for v in values)

    return Constraint(allows, reason, f"{'one of ' if len(named) > 1 else ''}{', '.join(named)}")


def _whole_pages(value: object) -> bool:
    if value is None:
        return True  # the engine's own choices are all multiples of 64
    return isinstance(value, int) and not isinstance(value, bool) and value > 0 and value % PAGE_SIZE == 0


_BACKENDS = tuple(backend.value for backend in TransferBackend)
_DSA_KERNELS = one_of(
    None,
    "flashmla_sparse",
    "flashmla_kv",
    reason="no other sparse attention kernel has been shown to read Plait's dense views",
)
_DSA = one_of(None, "dsa", reason="Plait hooks the engine's sparse attention backend and no other")
_NO_GRAPH = one_of(
    None, "disabled", reason="a prefill CUDA graph would replay the page tables of another batch"
)

_BOTH = {
    "page_size": one_of(
        None, PAGE_SIZE, reason=f"pages are {PAGE_SIZE} tokens: owners, transfers and kernels count on it"
    ),
    "device": one_of(None, "cuda", "cpu", reason="no other device has been shown"),
    "dtype": one_of(
        "auto", "bfloat16", "float", "float32", reason="no other compute type has been shown with DSA"
    ),
    "kv_cache_dtype": one_of(
        "auto",
        "bf16",
        "bfloat16",
        "fp8_e4m3",
        reason="the row bytes of no other KV storage type are part of the contract",
    ),
    "model_impl": one_of(
        "auto", "sglang", reason="Plait hooks the engine's own model classes, not the fallback ones"
    ),
    "attention_backend": _DSA,
    "prefill_attention_backend": _DSA,
    "decode_attention_backend": _DSA,
    "dsa_prefill_backend": _DSA_KERNELS,
    "dsa_decode_backend": _DSA_KERNELS,
    "sampling_backend": one_of(None, "pytorch", "flashinfer", reason="no other sampler has been shown"),
    "grammar_backend": one_of(
        None, "none", "xgrammar", reason="no other grammar backend has been shown through prefill and decode"
    ),
    "cuda_graph_backend_prefill": _NO_GRAPH,
    "disaggregation_transfer_backend": one_of(
        *_BACKENDS, reason="owned pages and their positions are carried over mooncake only"
    ),
}
_PREFILL = {
    "disaggregation_mode": one_of(
        "prefill", reason="the shared layout belongs to engines in prefill mode, which never decode"
    ),
    "enable_prefill_cp": one_of(True, reason="one cache per group needs a context-parallel group"),
    "cp_strategy": one_of(
        "interleave", reason="Plait's split by page ownership takes the place of this strategy, not of others"
    ),
    "chunked_prefill_size": Constraint(
        _whole_pages,
        f"chunks end at page boundaries, and an unchunked prompt has no bound on its scratch, so the size "
        f"is a positive multiple of {PAGE_SIZE}",
        f"a multiple of {PAGE_SIZE}, for example 8192",
    ),
    "disable_overlap_schedule": one_of(
        True, reason="prefill under the overlap scheduler has not been shown with page owners"
    ),
    "cuda_graph_backend_decode": one_of(None, "disabled", reason="a prefill engine never decodes"),
}
_DECODE = {
    "disaggregation_mode": one_of("decode", reason="this engine is the decode side of the stack"),
    "tp_size": one_of(
        1, reason="decode scales by data-parallel replicas; tensor-parallel decode is not shown"
    ),
    "attn_cp_size": one_of(1, reason="decode is not context-parallel: it receives plain full pages"),
    "enable_prefill_cp": one_of(False, reason="decode is not context-parallel: it receives plain full pages"),
}

RESOLVED: dict[str, Constraint] = {
    "page_size": one_of(PAGE_SIZE, reason="the engine resolved to another page size than Plait's"),
    "attention_backend": one_of("dsa", reason="the engine resolved to another attention backend than DSA"),
}
"""What must hold on both sides once the engine has filled in its own choices."""

RESOLVED_TOGETHER = (
    Together(
        "dsa_prefill_backend",
        "kv_cache_dtype",
        "fp8_e4m3",
        Constraint(
            lambda value: value == "flashmla_kv",
            "the engine resolved to an FP8 KV cache, and only flashmla_kv has been shown on its dense views",
            "--dsa-prefill-backend flashmla_kv",
        ),
    ),
)
"""As RESOLVED, where one field decides what another may hold."""

CONSTRAINTS: dict[Role, dict[str, Constraint]] = {
    Role.PREFILL: _BOTH | _PREFILL,
    Role.DECODE: _BOTH | _DECODE,
}

TOGETHER: dict[Role, tuple[Together, ...]] = {
    Role.PREFILL: (
        Together(
            "dsa_prefill_backend",
            "kv_cache_dtype",
            "fp8_e4m3",
            Constraint(
                lambda value: value != "flashmla_sparse",
                "its answers from an FP8 cache have been held against the replicated layout's without cached "
                "prefixes only, not over a dense view with one, nor against the stock engine's",
                "--dsa-prefill-backend flashmla_kv",
            ),
        ),
    ),
    Role.DECODE: (),
}
"""As CONSTRAINTS, where one field decides what another may hold."""
