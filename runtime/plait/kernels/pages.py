"""Page tables and slots for what attention reads, on the device: logical -> dense view, -> peers' memory.

A hole (-1, or any negative id) stays a hole (-1). A page that no request of the batch holds has no dense
page: its slots become holes too.
"""
# ruff: noqa: N803 (constant arguments of kernels are upper case, as everywhere in Triton)

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from plait.contract.layouts import PAGE_SIZE
from plait.layout.pages import owner, physical, slot_owner, slot_physical

HOLE = -1


class MapConfig(NamedTuple):
    """block: ids per program. warps: per program."""

    block: int
    warps: int


CONFIGS = (MapConfig(512, 4), MapConfig(1024, 4), MapConfig(2048, 4), MapConfig(4096, 8))


def page_inverse(
    pages: torch.Tensor, inverse: torch.Tensor, *, config: MapConfig = CONFIGS[0]
) -> torch.Tensor:
    """Fill `inverse` [logical pages] so that `inverse[pages[i]] == i`, holes (-1) elsewhere; returns it.

    pages: [dense pages], logical page of each dense page, in the dense view's order; holes are passed over. A
    page that stands there more than once (requests that share it) gets its last dense page: equal bytes.
    Both int32 or int64, contiguous. HAZARD: an id beyond the table is dropped, not reported.
    """
    _check(pages, inverse)
    inverse.fill_(HOLE)
    count = pages.numel()
    if count:
        _invert[(triton.cdiv(count, config.block),)](
            pages, inverse, count, inverse.numel(), BLOCK=config.block, num_warps=config.warps
        )
    return inverse


def page_inverse_reference(pages: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    """`page_inverse` in plain torch (a mask, which syncs)."""
    _check(pages, inverse)
    inverse.fill_(HOLE)
    kept = (pages >= 0) & (pages < inverse.numel())
    dense = torch.arange(pages.numel(), device=pages.device, dtype=inverse.dtype)
    return inverse.scatter_reduce_(0, pages[kept].long(), dense[kept], "amax")


def dense_pages(
    table: torch.Tensor, inverse: torch.Tensor, out: torch.Tensor, *, config: MapConfig = CONFIGS[0]
) -> torch.Tensor:
    """Dense page of each logical page of `table`, any shape; returns `out` (of its shape; may be `table`)."""
    return _remap(table, inverse, out, 1, config)


def dense_pages_reference(table: torch.Tensor, inverse: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """`dense_pages` in plain torch."""
    return _remap_reference(table, inverse, out, 1)


def dense_slots(
    slots: torch.Tensor, inverse: torch.Tensor, out: torch.Tensor, *, config: MapConfig = CONFIGS[0]
) -> torch.Tensor:
    """Dense slot of each logical slot, any shape; returns `out` (of that shape; may be `slots`)."""
    return _remap(slots, inverse, out, PAGE_SIZE, config)


def dense_slots_reference(slots: torch.Tensor, inverse: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """`dense_slots` in plain torch."""
    return _remap_reference(slots, inverse, out, PAGE_SIZE)


def peer_pages(
    table: torch.Tensor,
    out: torch.Tensor,
    *,
    ranks: int,
    pages_per_rank: int,
    config: MapConfig = CONFIGS[0],
) -> torch.Tensor:
    """`owner * pages_per_rank + physical page` of each logical page: its page in all ranks' mapped memory.

    pages_per_rank: from one rank's first page to the next rank's (the mapping's stride in pages). Any shape;
    returns `out` (may be `table`). Raises ValueError if the last rank's pages could not be told in `out`'s
    dtype.
    """
    return _to_peers(table, out, ranks, pages_per_rank, 1, config)


def peer_pages_reference(
    table: torch.Tensor, out: torch.Tensor, *, ranks: int, pages_per_rank: int
) -> torch.Tensor:
    """`peer_pages` in plain torch."""
    _fits(table, out, ranks, pages_per_rank)
    wide = table.long()
    peers = owner(wide, ranks) * pages_per_rank + physical(wide, ranks)
    return out.copy_(torch.where(wide >= 0, peers, HOLE))


def peer_slots(
    slots: torch.Tensor,
    out: torch.Tensor,
    *,
    ranks: int,
    rows_per_rank: int,
    config: MapConfig = CONFIGS[0],
) -> torch.Tensor:
    """`owner * rows_per_rank + local row` of each logical slot, as `peer_pages` for rows."""
    return _to_peers(slots, out, ranks, rows_per_rank, PAGE_SIZE, config)


def peer_slots_reference(
    slots: torch.Tensor, out: torch.Tensor, *, ranks: int, rows_per_rank: int
) -> torch.Tensor:
    """`peer_slots` in plain torch."""
    _fits(slots, out, ranks, rows_per_rank)
    wide = slots.long()
    peers = slot_owner(wide, ranks) * rows_per_rank + slot_physical(wide, ranks)
    return out.copy_(torch.where(wide >= 0, peers, HOLE))


def _remap(
    ids: torch.Tensor, inverse: torch.Tensor, out: torch.Tensor, unit: int, config: MapConfig
) -> torch.Tensor:
    _check(ids, inverse, out)
    _same_shape(ids, out)
    count = ids.numel()
    if count:
        _look_up[(triton.cdiv(count, config.block),)](
            ids, inverse, out, count, inverse.numel(), UNIT=unit, BLOCK=config.block, num_warps=config.warps
        )
    return out


def _remap_reference(ids: torch.Tensor, inverse: torch.Tensor, out: torch.Tensor, unit: int) -> torch.Tensor:
    _check(ids, inverse, out)
    _same_shape(ids, out)
    page = ids.long() // unit
    known = (ids >= 0) & (page < inverse.numel())
    dense = inverse[torch.where(known, page, 0)].long()
    slots = torch.where(dense >= 0, dense * unit + ids.long() % unit, HOLE)
    return out.copy_(torch.where(known, slots, HOLE))


def _to_peers(
    ids: torch.Tensor, out: torch.Tensor, ranks: int, per_rank: int, unit: int, config: MapConfig
) -> torch.Tensor:
    _fits(ids, out, ranks, per_rank)
    count = ids.numel()
    if count:
        _own[(triton.cdiv(count, config.block),)](
            ids, out, count, per_rank, RANKS=ranks, UNIT=unit, BLOCK=config.block, num_warps=config.warps
        )
    return out


def _check(*tensors: torch.Tensor) -> None:
    for tensor in tensors:
        if tensor.dtype not in (torch.int32, torch.int64) or not tensor.is_contiguous():
            raise ValueError(
                f"a table is {tensor.dtype} of strides {tensor.stride()}: give contiguous int32 or int64"
            )


def _same_shape(ids: torch.Tensor, out: torch.Tensor) -> None:
    if ids.shape != out.shape:
        raise ValueError(f"out has shape {tuple(out.shape)}: give {tuple(ids.shape)}, as the ids have")


def _fits(ids: torch.Tensor, out: torch.Tensor, ranks: int, per_rank: int) -> None:
    _check(ids, out)
    _same_shape(ids, out)
    if ranks * per_rank > torch.iinfo(out.dtype).max:
        raise ValueError(
            f"{ranks} ranks x {per_rank} do not fit {out.dtype}: use int64, smaller pools, or a dense view"
        )


@triton.jit(do_not_specialize=["count", "size"])  # type: ignore[untyped-decorator]
def _invert(
    pages: tl.tensor, inverse: tl.tensor, count: tl.tensor, size: tl.tensor, BLOCK: tl.constexpr
) -> None:
    dense = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    page = tl.load(pages + dense, mask=dense < count, other=-1)
    kept = (page >= 0) & (page < size)
    # The greatest wins, so that the table does not depend on which program comes first.
    tl.atomic_max(inverse + page, dense.to(inverse.dtype.element_ty), mask=kept, sem="relaxed")


@triton.jit  # type: ignore[untyped-decorator]
def dense_slot(value: tl.tensor, inverse: tl.tensor, size: tl.tensor, UNIT: tl.constexpr) -> tl.tensor:
    """int64 dense slot of each logical one."""
    page = value // UNIT
    known = (value >= 0) & (page < size)
    dense = tl.load(inverse + page, mask=known, other=-1).to(tl.int64)
    return tl.where(dense >= 0, dense * UNIT + value % UNIT, -1)


@triton.jit  # type: ignore[untyped-decorator]
def peer_slot(value: tl.tensor, per_rank: tl.tensor, RANKS: tl.constexpr, UNIT: tl.constexpr) -> tl.tensor:
    """int64 slot in all ranks' memory of each logical one."""
    page = value // UNIT
    row = page // RANKS * UNIT + value % UNIT
    return tl.where(value >= 0, (page % RANKS).to(tl.int64) * per_rank + row, -1)


@triton.jit(do_not_specialize=["count", "size"])  # type: ignore[untyped-decorator]
def _look_up(
    ids: tl.tensor,
    inverse: tl.tensor,
    out: tl.tensor,
    count: tl.tensor,
    size: tl.tensor,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    start = tl.program_id(0).to(tl.int64) * BLOCK
    if start + BLOCK <= count:  # without a mask, so that whole vectors are moved
        value = tl.load(ids + start + tl.arange(0, BLOCK))
        slot = dense_slot(value, inverse, size, UNIT)
        tl.store(out + start + tl.arange(0, BLOCK), slot.to(out.dtype.element_ty))
    else:
        at = start + tl.arange(0, BLOCK)
        rest = tl.load(ids + at, mask=at < count, other=-1)
        slots = dense_slot(rest, inverse, size, UNIT)
        tl.store(out + at, slots.to(out.dtype.element_ty), mask=at < count)


@triton.jit(do_not_specialize=["count", "per_rank"])  # type: ignore[untyped-decorator]
def _own(
    ids: tl.tensor,
    out: tl.tensor,
    count: tl.tensor,
    per_rank: tl.tensor,
    RANKS: tl.constexpr,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    start = tl.program_id(0).to(tl.int64) * BLOCK
    if start + BLOCK <= count:
        value = tl.load(ids + start + tl.arange(0, BLOCK))
        peer = peer_slot(value, per_rank, RANKS, UNIT)
        tl.store(out + start + tl.arange(0, BLOCK), peer.to(out.dtype.element_ty))
    else:
        at = start + tl.arange(0, BLOCK)
        rest = tl.load(ids + at, mask=at < count, other=-1)
        peers = peer_slot(rest, per_rank, RANKS, UNIT)
        tl.store(out + at, peers.to(out.dtype.element_ty), mask=at < count)
