"""Row ranges of the owners' pages into dense pages: the chunk's rows, where a page is not full.

As `pull`, with its addresses and its hazards; the rows of the dense page outside the range stay as they are.
"""
# ruff: noqa: N803 (constant arguments of kernels are upper case, as everywhere in Triton)

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from plait.contract.layouts import PAGE_SIZE
from plait.kernels.pull import CONFIGS, VECTOR, PullConfig, check_pull, rank_pages

WORD = 4
"""Bytes of the elements that the kernel counts in (int32)."""


class RowPart(NamedTuple):
    """A stretch of a page that rows are kept in: row i is the `row_bytes` at `offset + i * row_bytes`."""

    offset: int
    row_bytes: int


INDEX_PARTS = (RowPart(0, 128), RowPart(PAGE_SIZE * 128, 4))
"""An index page: FP8 keys, then fp32 scales."""


def mla_parts(row_bytes: int) -> tuple[RowPart]:
    """An MLA page: whole rows of 656 (packed FP8), 1152 (bf16) or 2304 (fp32) bytes."""
    return (RowPart(0, row_bytes),)


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
    count = check_pull(spanning, stride, page_bytes, (owner, physical, place, begin, end), out)
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
    config: PullConfig | None = None,
) -> None:
    """`pull_rows` in plain torch: per part, the wanted (page, row) pairs by a mask (which syncs)."""
    del config
    count = check_pull(spanning, stride, page_bytes, (owner, physical, place, begin, end), out)
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
        rows = pages[:, span].view(-1, PAGE_SIZE, row_bytes)
        dense[:, span].view(-1, PAGE_SIZE, row_bytes)[place.long()[page], row] = rows[source, row]


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


@triton.jit(do_not_specialize=["count", "stride_vectors"])  # type: ignore[untyped-decorator]
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
