"""Bytes of one token's rows per layer, and of one page: what pools allocate and transfers move.

MLA row: the latent (`kv_lora_rank` values) and the rope part (`qk_rope_head_dim` values).
Index row: the indexer's key (`index_head_dim` FP8 bytes) and its scales (one fp32 per 128 values); a page
stores all its keys first, then all its scales, so a row is not contiguous but a page is.
"""

from __future__ import annotations

from dataclasses import dataclass

from plait.contract.layouts import PAGE_SIZE, KvDtype
from plait.contract.violation import ContractError, Violation

SCALE_BLOCK = 128
"""Values that share one fp32 scale, in the packed MLA row and in the index row."""
SCALE_BYTES = 4
_BF16_BYTES = 2
_WIDTH = {KvDtype.BF16: 2, KvDtype.FP32: 4}


@dataclass(frozen=True, kw_only=True)
class RowBytes:
    """Bytes per token and layer."""

    mla: int
    index: int

    @property
    def total(self) -> int:
        return self.mla + self.index

    @property
    def page(self) -> int:
        """Bytes of one page (64 tokens) of one layer, MLA and index together."""
        return PAGE_SIZE * self.total


def kv_dtype(value: KvDtype | str, *, field: str = "kv_cache_dtype") -> KvDtype:
    """The storage type for `value`; the engine's `bf16` is accepted for `bfloat16`. Errors name `field`."""
    name = {"bf16": KvDtype.BF16.value}.get(str(value), str(value))
    if name in [dtype.value for dtype in KvDtype]:
        return KvDtype(name)
    known = ", ".join(dtype.value for dtype in KvDtype)
    raise ContractError(
        [Violation(field, value, "not a KV storage type that Plait knows", f"one of {known}")]
    )


def mla_row_bytes(dtype: KvDtype | str, *, kv_lora_rank: int, qk_rope_head_dim: int) -> int:
    """Bytes of one token's MLA row in one layer: 656, 1152 or 2304 for the (512, 64) of DeepSeek and GLM-5.

    Raises ContractError when a size is not positive or the FP8 latent does not fill whole scale blocks.
    """
    stored = kv_dtype(dtype)
    _positive(kv_lora_rank=kv_lora_rank, qk_rope_head_dim=qk_rope_head_dim)
    if stored is not KvDtype.FP8_E4M3:
        return (kv_lora_rank + qk_rope_head_dim) * _WIDTH[stored]
    _whole_blocks(kv_lora_rank=kv_lora_rank)
    scales = kv_lora_rank // SCALE_BLOCK * SCALE_BYTES
    return kv_lora_rank + scales + qk_rope_head_dim * _BF16_BYTES


def index_row_bytes(*, index_head_dim: int) -> int:
    """Bytes of one token's indexer key and scales in one layer: 132 for a head dim of 128.

    Raises ContractError when the head dim is not a positive multiple of 128.
    """
    _positive(index_head_dim=index_head_dim)
    _whole_blocks(index_head_dim=index_head_dim)
    return index_head_dim + index_head_dim // SCALE_BLOCK * SCALE_BYTES


def row_bytes(
    dtype: KvDtype | str, *, kv_lora_rank: int, qk_rope_head_dim: int, index_head_dim: int
) -> RowBytes:
    """Both rows of one token in one layer."""
    mla = mla_row_bytes(dtype, kv_lora_rank=kv_lora_rank, qk_rope_head_dim=qk_rope_head_dim)
    return RowBytes(mla=mla, index=index_row_bytes(index_head_dim=index_head_dim))


def page_bytes(row: int) -> int:
    """Bytes of one page (64 tokens) of one layer, for a row of `row` bytes."""
    _positive(row=row)
    return PAGE_SIZE * row


def _positive(**sizes: int) -> None:
    bad = [
        Violation(
            name, value, "a row size must be a positive whole number", "take it from the model's config.json"
        )
        for name, value in sizes.items()
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0
    ]
    if bad:
        raise ContractError(bad)


def _whole_blocks(**sizes: int) -> None:
    bad = [
        Violation(
            name,
            value,
            f"FP8 rows hold one scale per {SCALE_BLOCK} values, so the size must divide by it",
            f"a multiple of {SCALE_BLOCK}, or a KV dtype without scales",
        )
        for name, value in sizes.items()
        if value % SCALE_BLOCK
    ]
    if bad:
        raise ContractError(bad)
