"""Packed FP8 MLA rows -> bf16 rows while they land, for attention that wants bf16. Bit-equal to the engine's
`dequantize_k_cache`: FP8 -> fp32, times the tile's fp32 scale, rounded to bf16; the rope is copied.

`convert_rows` reads one pool by slots; `convert_pages` reads the pages of all owners as `pull` does (and has
its hazards), so that a gather needs no second pass over what it fetched.
"""
# ruff: noqa: N803 (constant arguments of kernels are upper case, as everywhere in Triton)

from __future__ import annotations

import torch
import triton
import triton.language as tl

from plait.contract.layouts import PAGE_SIZE
from plait.contract.rows import SCALE_BLOCK
from plait.kernels.pull import check_pages, rank_pages
from plait.kernels.store_mla import LATENT, ROPE, ROPE_AT, ROW_BYTES, SCALES_AT, TILES, StoreConfig

WIDTH = LATENT + ROPE
PAGE_BYTES = PAGE_SIZE * ROW_BYTES

CONFIGS = (StoreConfig(8, 4), StoreConfig(4, 4), StoreConfig(2, 2), StoreConfig(8, 8))


def convert_rows(
    packed: torch.Tensor,
    slots: torch.Tensor,
    out: torch.Tensor,
    *,
    config: StoreConfig = CONFIGS[0],
) -> torch.Tensor:
    """`out[i]` = bf16 of row `slots[i]` of `packed`; a hole (slot < 0) becomes a row of zeros; returns `out`.

    packed: uint8 or float8_e4m3fn [rows, 656] (a dimension of one in the middle is allowed), contiguous.
    slots: int32 or int64 [n]. out: bf16 [n, 576] (likewise), contiguous.
    """
    rows = _bytes(packed)
    count = _check_rows(slots, out)
    if count:
        _launch(rows, out, slots, slots, slots, count, 0, False, config)
    return out


def convert_rows_reference(packed: torch.Tensor, slots: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """`convert_rows` in plain torch."""
    rows = _bytes(packed)
    _check_rows(slots, out)
    hole = slots < 0
    unpacked = unpacked_rows(rows.index_select(0, torch.where(hole, 0, slots).long()))
    return out.view(-1, WIDTH).copy_(unpacked.masked_fill_(hole[:, None], 0)).view(out.shape)


def convert_pages(
    spanning: torch.Tensor,
    stride: int,
    owner: torch.Tensor,
    physical: torch.Tensor,
    place: torch.Tensor,
    out: torch.Tensor,
    *,
    config: StoreConfig = CONFIGS[0],
) -> torch.Tensor:
    """bf16 of page `physical[i]` of rank `owner[i]` into dense page `place[i]` of `out`; place < 0: skipped.

    spanning, stride, owner, physical, place: as for `pull`, of pages of 41,984 bytes. out: bf16 [dense rows,
    576] (a dimension of one in the middle is allowed), whole pages, contiguous; returned.
    """
    count = _check_pages(spanning, stride, (owner, physical, place), out)
    if count:
        _launch(spanning, out, owner, physical, place, count * PAGE_SIZE, stride, True, config)
    return out


def convert_pages_reference(
    spanning: torch.Tensor,
    stride: int,
    owner: torch.Tensor,
    physical: torch.Tensor,
    place: torch.Tensor,
    out: torch.Tensor,
) -> torch.Tensor:
    """`convert_pages` in plain torch (a mask, which syncs)."""
    _check_pages(spanning, stride, (owner, physical, place), out)
    wanted = place >= 0
    source = (owner.long() * (stride // PAGE_BYTES) + physical.long())[wanted]
    pages = rank_pages(spanning, stride, PAGE_BYTES).index_select(0, source)
    unpacked = unpacked_rows(pages.view(-1, ROW_BYTES)).view(-1, PAGE_SIZE * WIDTH)
    out.view(-1, PAGE_SIZE * WIDTH).index_copy_(0, place.long()[wanted], unpacked)
    return out


def unpacked_rows(packed: torch.Tensor) -> torch.Tensor:
    """bf16 [n, 576] of packed rows, uint8 [n, 656]."""
    quantized = packed[:, :LATENT].contiguous().view(torch.float8_e4m3fn)
    values = quantized.float().view(-1, TILES, SCALE_BLOCK)
    scales = packed[:, SCALES_AT:ROPE_AT].contiguous().view(torch.float32)
    latent = (values * scales[..., None]).flatten(-2).to(torch.bfloat16)
    return torch.cat([latent, packed[:, ROPE_AT:].contiguous().view(torch.bfloat16)], dim=-1)


def _bytes(packed: torch.Tensor) -> torch.Tensor:
    if packed.dtype not in (torch.uint8, torch.float8_e4m3fn) or packed.shape[-1] != ROW_BYTES:
        raise ValueError(f"packed is {packed.dtype} {tuple(packed.shape)}: give rows of {ROW_BYTES} bytes")
    if not packed.is_contiguous():
        raise ValueError(f"packed has strides {packed.stride()}: give the pool's contiguous tensor")
    return packed.view(torch.uint8).view(-1, ROW_BYTES)


def _check_out(out: torch.Tensor) -> int:
    if out.dtype != torch.bfloat16 or out.shape[-1] != WIDTH or not out.is_contiguous():
        raise ValueError(f"out is {out.dtype} {tuple(out.shape)}: give contiguous bfloat16 rows of {WIDTH}")
    return out.numel() // WIDTH


def _check_rows(slots: torch.Tensor, out: torch.Tensor) -> int:
    rows = _check_out(out)
    if slots.shape != (rows,) or slots.dtype not in (torch.int32, torch.int64) or not slots.is_contiguous():
        raise ValueError(f"slots is {slots.dtype} {tuple(slots.shape)}: give int32 or int64 [{rows}]")
    return rows


def _check_pages(
    spanning: torch.Tensor, stride: int, lists: tuple[torch.Tensor, ...], out: torch.Tensor
) -> int:
    if _check_out(out) % PAGE_SIZE:
        raise ValueError(f"out has {out.numel() // WIDTH} rows: give whole pages of {PAGE_SIZE}")
    return check_pages(spanning, stride, PAGE_BYTES, lists)


def _launch(
    packed: torch.Tensor,
    out: torch.Tensor,
    owner: torch.Tensor,
    physical: torch.Tensor,
    place: torch.Tensor,
    rows: int,
    stride: int,
    pages: bool,
    config: StoreConfig,
) -> None:
    data = packed.view(-1)
    _convert[(triton.cdiv(rows, config.rows),)](
        data.view(torch.float8_e4m3fn),
        # A pool of an odd number of rows is still whole words; the spanning range is cut to them.
        data.view(torch.float32),
        data.view(torch.bfloat16),
        out,
        owner,
        physical,
        place,
        rows,
        stride // 16,
        PAGES=pages,
        PAGE=PAGE_SIZE,
        ROWS=config.rows,
        TILES=TILES,
        TILE=SCALE_BLOCK,
        ROPE=ROPE,
        ROW_BYTES=ROW_BYTES,
        num_warps=config.warps,
    )


@triton.jit(do_not_specialize=["rows", "stride_vectors"])  # type: ignore[untyped-decorator]
def _convert(
    fp8: tl.tensor,
    fp32: tl.tensor,
    bf16: tl.tensor,
    out: tl.tensor,
    owner: tl.tensor,
    physical: tl.tensor,
    place: tl.tensor,
    rows: tl.tensor,
    stride_vectors: tl.tensor,
    PAGES: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
    TILES: tl.constexpr,
    TILE: tl.constexpr,
    ROPE: tl.constexpr,
    ROW_BYTES: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    # Byte of the source row in vectors of 16, times 16 last: every address is seen to be a whole vector.
    if PAGES:
        entry = row // PAGE
        dense = tl.load(place + entry, mask=inside, other=-1).to(tl.int64)
        wanted = dense >= 0
        written = wanted
        target = dense * PAGE + row % PAGE
        local = tl.load(physical + entry, mask=wanted, other=0).to(tl.int64) * PAGE + row % PAGE
        rank = tl.load(owner + entry, mask=wanted, other=0).to(tl.int64)
        vector = rank * stride_vectors + local * (ROW_BYTES // 16)
    else:
        slot = tl.load(owner + row, mask=inside, other=-1).to(tl.int64)
        wanted = slot >= 0
        written = inside
        target = row
        vector = slot * (ROW_BYTES // 16)
    tile = tl.arange(0, TILES)
    within = tile[None, :, None] * TILE + tl.arange(0, TILE)[None, None, :]
    value = tl.load(fp8 + (vector * 16)[:, None, None] + within, mask=wanted[:, None, None], other=0.0)
    scales_at = (vector * 4)[:, None] + TILES * TILE // 4 + tile[None, :]
    scale = tl.load(fp32 + scales_at, mask=wanted[:, None], other=0.0)
    latent = (value.to(tl.float32) * scale[:, :, None]).to(tl.bfloat16)
    start = target * (TILES * TILE + ROPE)
    tl.store(out + start[:, None, None] + within, latent, mask=written[:, None, None])
    turn = tl.arange(0, ROPE)[None, :]
    rope_at = (vector * 8)[:, None] + (TILES * TILE + 4 * TILES) // 2 + turn
    roped = tl.load(bf16 + rope_at, mask=wanted[:, None], other=0.0)
    tl.store(out + start[:, None] + TILES * TILE + turn, roped, mask=written[:, None])
