"""What the indexer scores against: keys and scales of a batch, out of index pages, request after request; and
the range of them that each query row may see. Both in one launch, or the range alone (when the chunk's own
keys are dense already).
"""
# ruff: noqa: N803 (constant arguments of kernels are upper case, as everywhere in Triton)

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from plait.contract.layouts import PAGE_SIZE
from plait.kernels.row_range import (
    RANGE_BLOCK,
    Queries,
    RowRange,
    check_queries,
    no_request,
    query_arguments,
    ranges_of,
    row_range_reference,
)
from plait.kernels.store_index import DIM, PAGE_BYTES, page_parts


class ReadConfig(NamedTuple):
    """rows: tokens that a program copies, a divisor of the page's 64. warps: per program."""

    rows: int
    warps: int


CONFIGS = (ReadConfig(64, 8), ReadConfig(64, 4), ReadConfig(32, 2), ReadConfig(16, 1))


class IndexKeys(NamedTuple):
    """keys: float8_e4m3fn [tokens, 128]. scales: float32 [tokens]."""

    keys: torch.Tensor
    scales: torch.Tensor

    @classmethod
    def empty(cls, tokens: int, device: torch.device) -> IndexKeys:
        """Not yet filled."""
        keys = torch.empty((tokens, DIM), dtype=torch.float8_e4m3fn, device=device)
        return cls(keys, torch.empty(tokens, dtype=torch.float32, device=device))


def read_index(
    pages: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    queries: Queries,
    out: IndexKeys,
    ranges: RowRange,
    *,
    longest: int,
    config: ReadConfig = CONFIGS[0],
) -> None:
    """Fill `out` with the keys of all requests' tokens, one request after the other, and `ranges`.

    pages: uint8 [pages, 8448], contiguous. table: int32 or int64 [requests, >= pages of the longest], its
    rows contiguous, page of each 64 tokens. lengths: int32 [requests + 1], first key of each request in `out`
    and the end (exclusive sums of the sequences' lengths). longest: tokens of the longest sequence (host).
    Raises ValueError on shapes and dtypes that do not fit; ids are not checked (they are on the device).
    """
    requests = _check_keys(pages, table, lengths, out, longest)
    check_queries(queries, lengths, ranges)
    copies = requests * triton.cdiv(longest, config.rows)
    programs = copies + triton.cdiv(queries.rows, RANGE_BLOCK)
    if not requests or not programs:
        no_request(requests, ranges)
        return
    _read[(programs,)](
        pages.view(torch.int32),
        table,
        table.stride(0),
        lengths,
        out.keys.view(torch.int32),
        out.scales.view(torch.int32),
        copies,
        requests,
        *query_arguments(queries, lengths),
        *ranges,
        HAS_POSITIONS=queries.positions is not None,
        PAGE=PAGE_SIZE,
        ROWS=config.rows,
        DIM_WORDS=DIM // 4,
        PAGE_WORDS=PAGE_BYTES // 4,
        BLOCK=RANGE_BLOCK,
        num_warps=config.warps,
    )


def read_index_reference(
    pages: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    queries: Queries,
    out: IndexKeys,
    ranges: RowRange,
    *,
    longest: int,
) -> None:
    """`read_index` in plain torch (request by request; the lengths come to the host)."""
    _check_keys(pages, table, lengths, out, longest)
    keys, scales = page_parts(pages)
    bounds = lengths.tolist()
    for request, (first, end) in enumerate(pairwise(bounds)):
        used = table[request, : -(-(end - first) // PAGE_SIZE)].long()
        for part, target in ((keys, out.keys.view(torch.uint8)), (scales, _bytes(out.scales))):
            target[first:end] = part.index_select(0, used).flatten(0, 1)[: end - first]
    row_range_reference(queries, lengths, ranges)


def _bytes(scales: torch.Tensor) -> torch.Tensor:
    return scales.view(torch.uint8).view(-1, 4)


def _check_keys(
    pages: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor, out: IndexKeys, longest: int
) -> int:
    """Requests, after checking what the host can see without a sync."""
    if pages.dtype != torch.uint8 or pages.dim() != 2 or pages.shape[1] != PAGE_BYTES:
        raise ValueError(f"pages is {pages.dtype} {tuple(pages.shape)}: give uint8 [pages, {PAGE_BYTES}]")
    if not (pages.is_contiguous() and out.keys.is_contiguous() and out.scales.is_contiguous()):
        raise ValueError("pages, keys and scales must be contiguous")
    requests = lengths.numel() - 1
    width = -(-longest // PAGE_SIZE)
    sized = table.dim() == 2 and table.shape[0] >= requests and table.shape[1] >= width
    if requests and not (sized and table.stride(1) == 1):
        raise ValueError(
            f"table has shape {tuple(table.shape)} and strides {table.stride()}: give contiguous rows of at "
            f"least {width} pages for {requests} requests"
        )
    if table.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"table is {table.dtype}: give int32 or int64")
    tokens = out.scales.shape[0]
    if out.keys.shape != (tokens, DIM) or out.scales.dtype != torch.float32 or out.keys.itemsize != 1:
        raise ValueError(f"keys is {tuple(out.keys.shape)}: give bytes [{tokens}, {DIM}] and float32 scales")
    return requests


@triton.jit(do_not_specialize=["table_stride", "copies", "requests", "rows"])  # type: ignore[untyped-decorator]
def _read(
    pages: tl.tensor,
    table: tl.tensor,
    table_stride: tl.tensor,
    lengths: tl.tensor,
    keys_out: tl.tensor,
    scales_out: tl.tensor,
    copies: tl.tensor,
    requests: tl.tensor,
    starts: tl.tensor,
    positions: tl.tensor,
    rows: tl.tensor,
    first_out: tl.tensor,
    end_out: tl.tensor,
    request_out: tl.tensor,
    HAS_POSITIONS: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
    DIM_WORDS: tl.constexpr,
    PAGE_WORDS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    program = tl.program_id(0)
    if program >= copies:
        ranges_of(
            program - copies,
            lengths,
            requests,
            starts,
            positions,
            rows,
            first_out,
            end_out,
            request_out,
            HAS_POSITIONS,
            BLOCK,
        )
        return
    per_request = copies // requests
    request = program // per_request
    token = program % per_request * ROWS
    begin = tl.load(lengths + request)
    left = tl.load(lengths + request + 1) - begin - token
    if left <= 0:
        return
    page = tl.load(table + request.to(tl.int64) * table_stride + token // PAGE).to(tl.int64)
    source = pages + page * PAGE_WORDS
    word = tl.arange(0, ROWS * DIM_WORDS)
    key = tl.load(source + token % PAGE * DIM_WORDS + word, mask=word < left * DIM_WORDS)
    to = (begin + token).to(tl.int64)
    tl.store(keys_out + to * DIM_WORDS + word, key, mask=word < left * DIM_WORDS)
    row = tl.arange(0, ROWS)
    scale = tl.load(source + PAGE * DIM_WORDS + token % PAGE + row, mask=row < left)
    tl.store(scales_out + to + row, scale, mask=row < left)
