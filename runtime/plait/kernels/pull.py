"""Pages of all owners into dense pages: one kernel reads peers' memory by page list, for fragments and chunks.

All ranks' pools lie side by side in one address range (`plait.peer`): page p of rank r begins at byte
`r * stride + p * page_bytes` of `spanning`, so one base pointer reaches every owner.
HAZARD: nothing here waits. The owners' rows must have been written, and a barrier met, before the launch; and
no owner may write them again before this kernel has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from plait.contract.layouts import PAGE_SIZE

VECTOR = 16
"""Bytes that one thread moves at once; pages and stride are multiples of it."""
WORD = 4
"""Bytes of the elements that the kernels count in (int32)."""


class PullConfig(NamedTuple):
    """chunk: bytes that a program moves at once. warps: per program. programs: at most so many in all."""

    chunk: int
    warps: int
    programs: int


CONFIGS = (
    PullConfig(chunk=8192, warps=4, programs=1056),
    PullConfig(chunk=16384, warps=8, programs=528),
    PullConfig(chunk=8192, warps=4, programs=264),
    PullConfig(chunk=4096, warps=4, programs=2112),
)


class RowPart(NamedTuple):
    """One of the stretches that a page keeps its rows in: row i is `row_bytes` from `offset + i * row_bytes`."""

    offset: int
    row_bytes: int


def pull(
    spanning: torch.Tensor,
    stride: int,
    page_bytes: int,
    owner: torch.Tensor,
    physical: torch.Tensor,
    place: torch.Tensor,
    out: torch.Tensor,
    *,
    first: int = 0,
    config: PullConfig = CONFIGS[0],
) -> None:
    """Copy page `physical[i]` of rank `owner[i]` to page `place[i]` of `out`, for every i; place < 0: skipped.

    spanning: uint8 [bytes], contiguous, all ranks' memory. stride: bytes from one rank's pages to the next's.
    page_bytes: a multiple of 16, as is `stride`. owner, physical, place: int32 or int64 [pages] (one dtype).
    out: uint8 [dense pages, page_bytes] or flat, contiguous. Two i of one place: either may win.
    first: the i to begin with, cyclically: give each rank another, or all ranks read from one owner at once.
    Raises ValueError on sizes or dtypes that do not fit; ids are not checked (they are on the device).
    """
    count = _check(spanning, stride, page_bytes, (owner, physical, place), out)
    if not count:
        return
    chunks = -(-page_bytes // config.chunk)
    _pull[(min(count * chunks, config.programs),)](
        spanning.view(torch.int32),
        out.view(torch.int32),
        owner,
        physical,
        place,
        count,
        first % count,
        stride // VECTOR,
        PAGE_VECTORS=page_bytes // VECTOR,
        CHUNK_VECTORS=config.chunk // VECTOR,
        num_warps=config.warps,
    )


def pull_reference(
    spanning: torch.Tensor,
    stride: int,
    page_bytes: int,
    owner: torch.Tensor,
    physical: torch.Tensor,
    place: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """`pull` in plain torch: one gather and one scatter of page rows (holes go through a mask: it syncs)."""
    if not _check(spanning, stride, page_bytes, (owner, physical, place), out):
        return
    wanted = place >= 0
    pages = rank_pages(spanning, stride, page_bytes)
    source = (owner.long() * (stride // page_bytes) + physical.long())[wanted]
    out.view(-1, page_bytes).index_copy_(0, place.long()[wanted], pages.index_select(0, source))


def pull_rows(
    spanning: torch.Tensor,
    stride: int,
    page_bytes: int,
    owner: torch.Tensor,
    physical: torch.Tensor,
    place: torch.Tensor,
    begin: torch.Tensor,
    end: torch.Tensor,
    out: torch.Tensor,
    *,
    parts: Sequence[RowPart],
    config: PullConfig = CONFIGS[0],
) -> None:
    """`pull` of rows [begin[i], end[i]) of page i only; the other rows of the dense page stay as they are.

    begin, end: of the dtype of `owner`, 0 <= begin <= end <= rows of a page. parts: where a page keeps its
    rows, one part for MLA pages, two for index pages (keys, then scales); offsets and row bytes are multiples
    of 4 (of 16 to be moved in whole vectors).
    """
    count = _check(spanning, stride, page_bytes, (owner, physical, place, begin, end), out)
    one, two = _two_parts(parts, page_bytes)
    if not count:
        return
    chunks = -(-one.row_bytes * PAGE_SIZE // config.chunk)
    _pull_rows[(min(count * chunks, config.programs),)](
        spanning.view(torch.int32),
        out.view(torch.int32),
        owner,
        physical,
        place,
        begin,
        end,
        count,
        stride // VECTOR,
        PAGE_VECTORS=page_bytes // VECTOR,
        CHUNKS=chunks,
        OFFSET=one.offset // WORD,
        ROW=one.row_bytes // WORD,
        OFFSET2=two.offset // WORD,
        ROW2=two.row_bytes // WORD,
        CHUNK=config.chunk // WORD,
        # The second part is a small one (scales): a single program moves all of a page's.
        CHUNK2=triton.next_power_of_2(max(1, PAGE_SIZE * two.row_bytes // WORD)),
        num_warps=config.warps,
    )


def pull_rows_reference(
    spanning: torch.Tensor,
    stride: int,
    page_bytes: int,
    owner: torch.Tensor,
    physical: torch.Tensor,
    place: torch.Tensor,
    begin: torch.Tensor,
    end: torch.Tensor,
    out: torch.Tensor,
    *,
    parts: Sequence[RowPart],
) -> None:
    """`pull_rows` in plain torch: per part, the wanted (page, row) pairs by a mask (which syncs)."""
    count = _check(spanning, stride, page_bytes, (owner, physical, place, begin, end), out)
    _two_parts(parts, page_bytes)
    if not count:
        return
    row = torch.arange(PAGE_SIZE, device=owner.device)
    wanted = (place >= 0)[:, None] & (row >= begin[:, None]) & (row < end[:, None])
    page, row = wanted.nonzero(as_tuple=True)
    source = (owner.long() * (stride // page_bytes) + physical.long())[page]
    pages, dense = rank_pages(spanning, stride, page_bytes), out.view(-1, page_bytes)
    for offset, row_bytes in parts:
        span = slice(offset, offset + PAGE_SIZE * row_bytes)
        rows = pages[:, span].unflatten(1, (PAGE_SIZE, row_bytes))
        dense[:, span].unflatten(1, (PAGE_SIZE, row_bytes))[place.long()[page], row] = rows[source, row]


def rank_pages(spanning: torch.Tensor, stride: int, page_bytes: int) -> torch.Tensor:
    """`spanning` as uint8 [pages, page_bytes]: page p of rank r is row `r * (stride // page_bytes) + p`.

    Raises ValueError if `stride` is not a multiple of `page_bytes`.
    """
    if stride % page_bytes:
        raise ValueError(f"stride is {stride}: it must be a multiple of the page's {page_bytes} bytes")
    pages = spanning.numel() // page_bytes
    return spanning[: pages * page_bytes].view(pages, page_bytes)


def _check(
    spanning: torch.Tensor,
    stride: int,
    page_bytes: int,
    lists: tuple[torch.Tensor, ...],
    out: torch.Tensor,
) -> int:
    """Pages asked for, after checking what the host can see without a sync."""
    if page_bytes <= 0 or page_bytes % VECTOR or stride % VECTOR:
        raise ValueError(f"page_bytes is {page_bytes}, stride {stride}: give multiples of {VECTOR} bytes")
    for name, tensor in (("spanning", spanning), ("out", out)):
        if tensor.dtype != torch.uint8 or not tensor.is_contiguous():
            raise ValueError(f"{name} is {tensor.dtype} of strides {tensor.stride()}: give contiguous uint8")
        if tensor.data_ptr() % VECTOR:
            raise ValueError(f"{name} begins at an address that is no multiple of {VECTOR} bytes")
    if spanning.dim() != 1 or out.numel() % page_bytes:
        raise ValueError(
            f"spanning has shape {tuple(spanning.shape)}, out {tuple(out.shape)}: give flat bytes, and whole "
            f"pages of {page_bytes} bytes"
        )
    count = lists[0].numel()
    for tensor in lists:
        if tensor.shape != (count,) or tensor.dtype != lists[0].dtype or not tensor.is_contiguous():
            raise ValueError("the page lists must be 1-D, contiguous, of one length and one dtype")
    if lists[0].dtype not in (torch.int32, torch.int64):
        raise ValueError(f"the page lists are {lists[0].dtype}: give int32 or int64")
    return count


def _two_parts(parts: Sequence[RowPart], page_bytes: int) -> tuple[RowPart, RowPart]:
    if not 1 <= len(parts) <= 2:
        raise ValueError(f"parts has {len(parts)} entries: a page keeps its rows in one or two stretches")
    for offset, row_bytes in parts:
        if offset % WORD or row_bytes % WORD or row_bytes <= 0 or offset + PAGE_SIZE * row_bytes > page_bytes:
            raise ValueError(
                f"a part at {offset} with rows of {row_bytes} bytes: multiples of {WORD} within the page's "
                f"{page_bytes} bytes are needed"
            )
    return parts[0], parts[1] if len(parts) == 2 else RowPart(0, 0)


@triton.jit  # type: ignore[untyped-decorator]
def _pull(
    source: tl.tensor,
    out: tl.tensor,
    owner: tl.tensor,
    physical: tl.tensor,
    place: tl.tensor,
    count: tl.tensor,
    first: tl.tensor,
    stride_vectors: tl.tensor,
    PAGE_VECTORS: tl.constexpr,
    CHUNK_VECTORS: tl.constexpr,
) -> None:
    CHUNKS: tl.constexpr = (PAGE_VECTORS + CHUNK_VECTORS - 1) // CHUNK_VECTORS
    within = tl.arange(0, CHUNK_VECTORS * 4)
    for item in range(tl.program_id(0), count * CHUNKS, tl.num_programs(0)):
        page = item // CHUNKS + first
        page = tl.where(page >= count, page - count, page)
        target = tl.load(place + page).to(tl.int64)
        start = tl.load(owner + page).to(tl.int64) * stride_vectors
        start += tl.load(physical + page).to(tl.int64) * PAGE_VECTORS
        offset = item % CHUNKS * (CHUNK_VECTORS * 4) + within
        wanted = (offset < PAGE_VECTORS * 4) & (target >= 0)
        # Times 4 last: so the compiler sees that every address is a whole vector.
        data = tl.load(source + start * 4 + offset, mask=wanted, cache_modifier=".cg")
        tl.store(out + target * PAGE_VECTORS * 4 + offset, data, mask=wanted)


@triton.jit  # type: ignore[untyped-decorator]
def _pull_rows(
    source: tl.tensor,
    out: tl.tensor,
    owner: tl.tensor,
    physical: tl.tensor,
    place: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    count: tl.tensor,
    stride_vectors: tl.tensor,
    PAGE_VECTORS: tl.constexpr,
    CHUNKS: tl.constexpr,
    OFFSET: tl.constexpr,
    ROW: tl.constexpr,
    OFFSET2: tl.constexpr,
    ROW2: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNK2: tl.constexpr,
) -> None:
    within = tl.arange(0, CHUNK)
    tail = tl.arange(0, CHUNK2)
    for item in range(tl.program_id(0), count * CHUNKS, tl.num_programs(0)):
        page = item // CHUNKS
        target = tl.load(place + page).to(tl.int64)
        start = tl.load(owner + page).to(tl.int64) * stride_vectors
        start += tl.load(physical + page).to(tl.int64) * PAGE_VECTORS
        first = tl.load(begin + page).to(tl.int32)
        rows = tl.load(end + page).to(tl.int32) - first
        rows = tl.where(target >= 0, rows, 0)
        offset = item % CHUNKS * CHUNK + within
        wanted = offset < rows * ROW
        skip = OFFSET + first * ROW
        data = tl.load(source + start * 4 + skip + offset, mask=wanted, cache_modifier=".cg")
        tl.store(out + target * PAGE_VECTORS * 4 + skip + offset, data, mask=wanted)
        if ROW2 > 0:
            wanted2 = tail < tl.where(item % CHUNKS == 0, rows, 0) * ROW2
            skip2 = OFFSET2 + first * ROW2
            data2 = tl.load(source + start * 4 + skip2 + tail, mask=wanted2, cache_modifier=".cg")
            tl.store(out + target * PAGE_VECTORS * 4 + skip2 + tail, data2, mask=wanted2)
