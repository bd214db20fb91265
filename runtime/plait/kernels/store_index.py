"""Indexer keys and their scales into this rank's index pages: 64 x 128 FP8 bytes, then 64 fp32 scales.

Three quantizers leave different bytes, and the decode engine reads whatever prefill stored: `Rounding` names
the stock one to be equal to. Logical slot -> physical row and the owner test are folded in.
"""
# ruff: noqa: N803 (constant arguments of kernels are upper case, as everywhere in Triton)

from __future__ import annotations

from enum import IntEnum

import torch
import triton
import triton.language as tl

from plait.contract.layouts import PAGE_SIZE
from plait.kernels.owned import owned_row, owned_row_reference
from plait.kernels.store_mla import FP8_MAX, StoreConfig, divided

DIM = 128
"""Values of a key; one scale each."""
PAGE_BYTES = PAGE_SIZE * (DIM + 4)
SMALLEST = 1e-4
"""Least |x| that a scale is made for: a key of zeros has a scale too."""

CONFIGS = (StoreConfig(16, 4), StoreConfig(8, 2), StoreConfig(32, 4), StoreConfig(4, 1))


class Rounding(IntEnum):
    """How a key becomes FP8, always of `amax = max(|x|, 1e-4)`."""

    FUSED = 1
    """The engine's fused store: scale = amax / 448, q = x * (1 / scale), both divisions exact."""
    POWER_OF_TWO = 2
    """Its Triton quantizer with `scale_fmt`: scale = 2 ^ ceil(log2(amax / 448)), q = x / scale."""
    PLAIN = 3
    """Its Triton quantizer without: scale = amax * (1 / 448), q = x / scale (fast division on a GPU)."""


_GIVEN = 0


def store_index(
    buffer: torch.Tensor,
    slots: torch.Tensor,
    key: torch.Tensor,
    scale: torch.Tensor,
    *,
    rank: int,
    ranks: int,
    dummy: bool = False,
    config: StoreConfig = CONFIGS[0],
) -> None:
    """Write FP8 key i and its scale to logical slot `slots[i]` if `rank` owns it; the rest is skipped.

    buffer: uint8 [pages, 8448], contiguous. slots: int32 or int64 [n]; -1 (padding) is skipped. key:
    float8_e4m3fn [>= n, 128]. scale: float32 [>= n] or [>= n, 1]. Rows beyond n are ignored.
    dummy: keys that others own go to row 0, what is there then is unspecified.
    Raises ValueError on shapes and dtypes that do not fit.
    """
    count = _check(buffer, slots, key, (torch.float8_e4m3fn,))
    if scale.dtype != torch.float32 or scale.numel() != scale.shape[0] or scale.shape[0] < count:
        raise ValueError(f"scale is {scale.dtype} {tuple(scale.shape)}: give float32 [>= {count}]")
    _launch(buffer, slots, key, scale.contiguous(), count, _GIVEN, rank, ranks, dummy, config)


def store_index_reference(
    buffer: torch.Tensor,
    slots: torch.Tensor,
    key: torch.Tensor,
    scale: torch.Tensor,
    *,
    rank: int,
    ranks: int,
    dummy: bool = False,
) -> None:
    """`store_index` in plain torch (the owner test is a mask, which syncs)."""
    count = _check(buffer, slots, key, (torch.float8_e4m3fn,))
    where, wanted = owned_row_reference(slots, rank=rank, ranks=ranks, dummy=dummy)
    page, row = where // PAGE_SIZE, where % PAGE_SIZE
    keys, scales = page_parts(buffer)
    keys[page, row] = key[:count].view(torch.uint8)[wanted]
    scales[page, row] = scale[:count].reshape(count, 1).contiguous().view(torch.uint8)[wanted]


def store_index_key(
    buffer: torch.Tensor,
    slots: torch.Tensor,
    key: torch.Tensor,
    *,
    rounding: Rounding,
    rank: int,
    ranks: int,
    dummy: bool = False,
    config: StoreConfig = CONFIGS[0],
) -> None:
    """`store_index` of keys that are not quantized yet: `key` bf16, fp16 or fp32 [>= n, 128]."""
    count = _check(buffer, slots, key, (torch.bfloat16, torch.float16, torch.float32))
    # The kernel reads no scale then; any tensor of the type will do.
    unused = buffer.view(-1).view(torch.float32)
    _launch(buffer, slots, key, unused, count, int(rounding), rank, ranks, dummy, config)


def store_index_key_reference(
    buffer: torch.Tensor,
    slots: torch.Tensor,
    key: torch.Tensor,
    *,
    rounding: Rounding,
    rank: int,
    ranks: int,
    dummy: bool = False,
) -> None:
    """`store_index_key` in plain torch."""
    _check(buffer, slots, key, (torch.bfloat16, torch.float16, torch.float32))
    quantized, scale = quantized_keys(key, rounding)
    store_index_reference(buffer, slots, quantized, scale, rank=rank, ranks=ranks, dummy=dummy)


def quantized_keys(key: torch.Tensor, rounding: Rounding) -> tuple[torch.Tensor, torch.Tensor]:
    """`key` [n, 128] as float8_e4m3fn [n, 128] and float32 scales [n]."""
    values = key.float()
    amax = values.abs().amax(-1).clamp_min(SMALLEST)
    if rounding is Rounding.FUSED:
        scale = divided(amax, FP8_MAX)
        quantized = values * (1.0 / scale)[:, None]
    else:
        scale = amax * (1.0 / FP8_MAX)
        if rounding is Rounding.POWER_OF_TWO:
            scale = torch.exp2(torch.ceil(torch.log2(scale)))
        quantized = values / scale[:, None]
    return quantized.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn), scale


def page_parts(buffer: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys, uint8 [pages, 64, 128], and scale bytes, uint8 [pages, 64, 4], of index pages [pages, 8448]."""
    keys, scales = buffer[:, : PAGE_SIZE * DIM], buffer[:, PAGE_SIZE * DIM :]
    return keys.view(-1, PAGE_SIZE, DIM), scales.view(-1, PAGE_SIZE, 4)


def _check(
    buffer: torch.Tensor, slots: torch.Tensor, key: torch.Tensor, dtypes: tuple[torch.dtype, ...]
) -> int:
    """Rows to store, after checking what the host can see without a sync."""
    if buffer.dtype != torch.uint8 or buffer.dim() != 2 or buffer.shape[1] != PAGE_BYTES:
        raise ValueError(f"buffer is {buffer.dtype} {tuple(buffer.shape)}: give uint8 [pages, {PAGE_BYTES}]")
    if not buffer.is_contiguous():
        raise ValueError(f"buffer has strides {buffer.stride()}: give the pool's contiguous tensor")
    if slots.dim() != 1 or slots.dtype not in (torch.int32, torch.int64) or not slots.is_contiguous():
        raise ValueError(f"slots is {slots.dtype} {tuple(slots.shape)}: give contiguous int32 or int64 [n]")
    count = slots.shape[0]
    if key.dtype not in dtypes or key.dim() != 2 or key.shape[1] != DIM or key.shape[0] < count:
        raise ValueError(f"key is {key.dtype} {tuple(key.shape)}: give [>= {count}, {DIM}] of {dtypes}")
    if key.stride(1) != 1:
        raise ValueError(f"key has strides {key.stride()}: its last dimension must be contiguous")
    return count


def _launch(
    buffer: torch.Tensor,
    slots: torch.Tensor,
    key: torch.Tensor,
    scale: torch.Tensor,
    count: int,
    rounding: int,
    rank: int,
    ranks: int,
    dummy: bool,
    config: StoreConfig,
) -> None:
    if not count:
        return
    _store_index[(triton.cdiv(count, config.rows),)](
        buffer.view(torch.float8_e4m3fn),
        buffer.view(torch.float32),
        slots,
        key,
        scale,
        count,
        key.stride(0),
        rank,
        ranks,
        ROUNDING=rounding,
        DUMMY=dummy,
        PAGE=PAGE_SIZE,
        ROWS=config.rows,
        DIM=DIM,
        PAGE_BYTES=PAGE_BYTES,
        LIMIT=FP8_MAX,
        SMALLEST=SMALLEST,
        num_warps=config.warps,
    )


@triton.jit(do_not_specialize=["count", "rank", "ranks"])  # type: ignore[untyped-decorator]
def _store_index(
    fp8: tl.tensor,
    fp32: tl.tensor,
    slots: tl.tensor,
    key: tl.tensor,
    scales: tl.tensor,
    count: tl.tensor,
    key_stride: tl.tensor,
    rank: tl.tensor,
    ranks: tl.tensor,
    ROUNDING: tl.constexpr,
    DUMMY: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    PAGE_BYTES: tl.constexpr,
    LIMIT: tl.constexpr,
    SMALLEST: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    slot = tl.load(slots + row, mask=row < count, other=-1).to(tl.int64)
    where, wanted = owned_row(slot, rank, ranks, PAGE, DUMMY)
    within = tl.arange(0, DIM)[None, :]
    mask = wanted[:, None]
    loaded = tl.load(key + row[:, None] * key_stride + within, mask=mask, other=0.0)
    if ROUNDING == 0:
        quantized = loaded
        scale = tl.load(scales + row, mask=wanted)
    else:
        value = loaded.to(tl.float32)
        amax = tl.maximum(tl.max(tl.abs(value), axis=1), SMALLEST)
        if ROUNDING == 1:
            scale = tl.div_rn(amax, LIMIT)
            scaled = value * tl.div_rn(1.0, scale)[:, None]
        elif ROUNDING == 2:
            scale = tl.exp2(tl.ceil(tl.log2(amax * (1.0 / LIMIT))))
            scaled = value / scale[:, None]
        else:
            scale = amax * (1.0 / LIMIT)
            scaled = value / scale[:, None]
        quantized = tl.clamp(scaled, -LIMIT, LIMIT).to(fp8.dtype.element_ty)
    page, inside = where // PAGE, where % PAGE
    tl.store(fp8 + (page * PAGE_BYTES + inside * DIM)[:, None] + within, quantized, mask=mask)
    tl.store(fp32 + page * (PAGE_BYTES // 4) + PAGE * DIM // 4 + inside, scale, mask=wanted)
