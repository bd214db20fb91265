"""MLA rows into this rank's pool: logical slot -> physical row, owner test and, for FP8, the packing, in one.

The packed FP8 row is 656 bytes: 512 FP8 E4M3 values in 4 tiles of 128, then one fp32 scale per tile, then
64 bf16 rope values. Bytes are those of the stock quantizer: `scale = max|x| / 448`, `q = clamp(x * (1 /
scale))`, with the device's fast division (`/`, div.full: 2 units in the last place). Torch divides exactly,
so on a GPU the reference's scales may differ in their last bits (`trials.close_rows` says how far).
"""
# ruff: noqa: N803 (constant arguments of kernels are upper case, as everywhere in Triton)

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from plait.contract.layouts import PAGE_SIZE
from plait.contract.rows import SCALE_BLOCK
from plait.kernels.owned import owned_row, owned_row_reference

LATENT = 512
ROPE = 64
ROW_BYTES = 656
TILES = LATENT // SCALE_BLOCK
SCALES_AT = LATENT
ROPE_AT = LATENT + 4 * TILES
FP8_MAX = 448.0


class StoreConfig(NamedTuple):
    """rows: per program. warps: per program."""

    rows: int
    warps: int


CONFIGS = (StoreConfig(8, 4), StoreConfig(4, 4), StoreConfig(2, 2), StoreConfig(1, 1))


def store_mla(
    buffer: torch.Tensor,
    slots: torch.Tensor,
    nope: torch.Tensor,
    rope: torch.Tensor,
    *,
    rank: int,
    ranks: int,
    dummy: bool = False,
    config: StoreConfig = CONFIGS[0],
) -> None:
    """Write row i of `nope` and `rope` to logical slot `slots[i]` if `rank` owns it; the rest is skipped.

    buffer: this rank's pool, contiguous: uint8 or float8_e4m3fn [rows, 656] (packed FP8), or bf16/fp16/fp32
    [rows, latent + rope] (converted to it). A dimension of one in the middle is allowed in all three.
    slots: int32 or int64 [n]; -1 (padding) is skipped. Rows of `nope` [>= n, latent] and `rope` [>= n, rope]
    beyond n are ignored; their last dimension is contiguous; packed rows are made of bf16.
    dummy: rows that others own go to row 0 instead, as the engine's dummy slot; what is there then is
    unspecified. Two rows of one slot: either may win.
    Raises ValueError on shapes and dtypes that do not fit.
    """
    rows = _Rows.of(buffer, slots, nope, rope)
    if not rows.given:
        return
    grid = (triton.cdiv(rows.given, config.rows),)
    if rows.packed:
        _store_packed[grid](
            rows.buffer.view(torch.float8_e4m3fn),
            rows.buffer.view(torch.float32),
            rows.buffer.view(torch.bfloat16),
            slots,
            nope,
            rope,
            rows.given,
            nope.stride(0),
            rope.stride(0),
            rank,
            ranks,
            DUMMY=dummy,
            PAGE=PAGE_SIZE,
            ROWS=config.rows,
            TILES=TILES,
            TILE=SCALE_BLOCK,
            ROPE=ROPE,
            ROW_BYTES=ROW_BYTES,
            LIMIT=FP8_MAX,
            num_warps=config.warps,
        )
        return
    latent, width = nope.shape[-1], rope.shape[-1]
    _store_plain[grid](
        rows.buffer,
        slots,
        nope,
        rope,
        rows.given,
        nope.stride(0),
        rope.stride(0),
        rank,
        ranks,
        DUMMY=dummy,
        PAGE=PAGE_SIZE,
        ROWS=config.rows,
        LATENT=latent,
        LATENT_BLOCK=triton.next_power_of_2(latent),
        ROPE=width,
        ROPE_BLOCK=triton.next_power_of_2(width),
        num_warps=config.warps,
    )


def store_mla_reference(
    buffer: torch.Tensor,
    slots: torch.Tensor,
    nope: torch.Tensor,
    rope: torch.Tensor,
    *,
    rank: int,
    ranks: int,
    dummy: bool = False,
) -> None:
    """`store_mla` in plain torch (the owner test is a mask, which syncs)."""
    rows = _Rows.of(buffer, slots, nope, rope)
    where, wanted = owned_row_reference(slots, rank=rank, ranks=ranks, dummy=dummy)
    latent, roped = (part[: rows.given].reshape(rows.given, part.shape[-1])[wanted] for part in (nope, rope))
    if rows.packed:
        rows.buffer.view(torch.uint8)[where] = packed_rows(latent, roped)
    else:
        rows.buffer[where] = torch.cat([latent, roped], dim=-1).to(rows.buffer.dtype)


def packed_rows(nope: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
    """Packed FP8 rows, uint8 [n, 656], of bf16 `nope` [n, 512] and `rope` [n, 64].

    A tile of zeros has scale 0 and is stored as the quantizer's clamp leaves 0 * inf: the largest value. It
    reads as 0 all the same.
    """
    tiles = nope.float().view(-1, TILES, SCALE_BLOCK)
    scales = divided(tiles.abs().amax(-1), FP8_MAX)
    values = torch.nan_to_num(tiles * (1.0 / scales)[..., None], nan=FP8_MAX)
    quantized = values.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn).flatten(-2)
    parts = (quantized, scales, rope.contiguous())
    return torch.cat([part.view(torch.uint8) for part in parts], dim=-1)


def divided(values: torch.Tensor, by: float) -> torch.Tensor:
    """The exact quotients: on CUDA, torch turns a division by a number into a product with its inverse."""
    return values / torch.full_like(values, by)


class _Rows(NamedTuple):
    """buffer: [rows, width]. packed: rows of 656 bytes. given: n."""

    buffer: torch.Tensor
    packed: bool
    given: int

    @classmethod
    def of(cls, buffer: torch.Tensor, slots: torch.Tensor, nope: torch.Tensor, rope: torch.Tensor) -> _Rows:
        """The buffer seen as rows, after checking what the host can see without a sync."""
        if not buffer.is_contiguous():
            raise ValueError(f"buffer has strides {buffer.stride()}: give the pool's contiguous tensor")
        if slots.dim() != 1 or slots.dtype not in (torch.int32, torch.int64) or not slots.is_contiguous():
            raise ValueError(
                f"slots is {slots.dtype} {tuple(slots.shape)}: give contiguous int32 or int64 [n]"
            )
        count = slots.shape[0]
        for name, part in (("nope", nope), ("rope", rope)):
            if (
                part.stride(-1) != 1
                or part.shape[0] < count
                or part.numel() != part.shape[0] * part.shape[-1]
            ):
                raise ValueError(
                    f"{name} has shape {tuple(part.shape)} and strides {part.stride()}: give at least "
                    f"{count} rows with a contiguous last dimension"
                )
        width = buffer.shape[-1]
        packed = buffer.dtype in (torch.uint8, torch.float8_e4m3fn)
        sizes = (nope.shape[-1], rope.shape[-1])
        if packed and (width != ROW_BYTES or sizes != (LATENT, ROPE)):
            raise ValueError(f"packed rows are {ROW_BYTES} bytes of 512 + 64 values, not {width} of {sizes}")
        if packed and not nope.dtype == rope.dtype == torch.bfloat16:
            raise ValueError(f"packed rows are made of bfloat16, not of {nope.dtype} and {rope.dtype}")
        if not packed and width != sum(sizes):
            raise ValueError(f"the buffer's rows have {width} values, nope and rope {sizes}")
        return cls(buffer.view(-1, width), packed, count)


@triton.jit(do_not_specialize=["count", "rank", "ranks"])  # type: ignore[untyped-decorator]
def _store_packed(
    fp8: tl.tensor,
    fp32: tl.tensor,
    bf16: tl.tensor,
    slots: tl.tensor,
    nope: tl.tensor,
    rope: tl.tensor,
    count: tl.tensor,
    nope_stride: tl.tensor,
    rope_stride: tl.tensor,
    rank: tl.tensor,
    ranks: tl.tensor,
    DUMMY: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
    TILES: tl.constexpr,
    TILE: tl.constexpr,
    ROPE: tl.constexpr,
    ROW_BYTES: tl.constexpr,
    LIMIT: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    slot = tl.load(slots + row, mask=row < count, other=-1).to(tl.int64)
    where, wanted = owned_row(slot, rank, ranks, PAGE, DUMMY)
    tile = tl.arange(0, TILES)
    within = tile[None, :, None] * TILE + tl.arange(0, TILE)[None, None, :]
    mask = wanted[:, None, None]
    value = tl.load(nope + row[:, None, None] * nope_stride + within, mask=mask, other=0.0).to(tl.float32)
    # As in the stock kernel, operation for operation: `/` is the fast division, and there is no epsilon.
    scale = tl.max(tl.abs(value), axis=2) / LIMIT
    inverse = 1.0 / scale
    quantized = tl.clamp(value * inverse[:, :, None], -LIMIT, LIMIT).to(fp8.dtype.element_ty)
    tl.store(fp8 + where[:, None, None] * ROW_BYTES + within, quantized, mask=mask)
    scales_at = where[:, None] * (ROW_BYTES // 4) + TILES * TILE // 4 + tile[None, :]
    tl.store(fp32 + scales_at, scale, mask=wanted[:, None])
    turn = tl.arange(0, ROPE)[None, :]
    roped = tl.load(rope + row[:, None] * rope_stride + turn, mask=wanted[:, None])
    rope_at = where[:, None] * (ROW_BYTES // 2) + (TILES * TILE + 4 * TILES) // 2 + turn
    tl.store(bf16 + rope_at, roped, mask=wanted[:, None])


@triton.jit(do_not_specialize=["count", "rank", "ranks"])  # type: ignore[untyped-decorator]
def _store_plain(
    buffer: tl.tensor,
    slots: tl.tensor,
    nope: tl.tensor,
    rope: tl.tensor,
    count: tl.tensor,
    nope_stride: tl.tensor,
    rope_stride: tl.tensor,
    rank: tl.tensor,
    ranks: tl.tensor,
    DUMMY: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
    LATENT: tl.constexpr,
    LATENT_BLOCK: tl.constexpr,
    ROPE: tl.constexpr,
    ROPE_BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    slot = tl.load(slots + row, mask=row < count, other=-1).to(tl.int64)
    where, wanted = owned_row(slot, rank, ranks, PAGE, DUMMY)
    start = where[:, None] * (LATENT + ROPE)
    within = tl.arange(0, LATENT_BLOCK)[None, :]
    mask = wanted[:, None] & (within < LATENT)
    latent = tl.load(nope + row[:, None] * nope_stride + within, mask=mask)
    tl.store(buffer + start + within, latent.to(buffer.dtype.element_ty), mask=mask)
    turn = tl.arange(0, ROPE_BLOCK)[None, :]
    mask_rope = wanted[:, None] & (turn < ROPE)
    roped = tl.load(rope + row[:, None] * rope_stride + turn, mask=mask_rope)
    tl.store(buffer + start + LATENT + turn, roped.to(buffer.dtype.element_ty), mask=mask_rope)
