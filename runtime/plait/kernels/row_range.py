"""The range of a batch's keys that each query row may see: its own request's, up to itself.

The keys of all requests lie one request after the other, as `read_index` leaves them; this is the range
alone, for when the chunk's own keys are dense already.
"""
# ruff: noqa: N803 (constant arguments of kernels are upper case, as everywhere in Triton)

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

RANGE_BLOCK = 256
"""Query rows per program."""


class Queries(NamedTuple):
    """The query rows of this rank.

    starts: int32 [requests + 1], first row of each request and the end. positions: int32 or int64
    [>= starts[-1]], place of each row's token in its sequence; None: the rows are the last tokens of each
    sequence. rows: how many rows to make ranges for; those from starts[-1] on (padding) get empty ones.
    """

    starts: torch.Tensor
    positions: torch.Tensor | None
    rows: int


class RowRange(NamedTuple):
    """first, end: int32 [rows]: query row i sees keys first[i] .. end[i]. request: int32 [rows], of each row
    (0 for padding, whose range is empty)."""

    first: torch.Tensor
    end: torch.Tensor
    request: torch.Tensor

    @classmethod
    def empty(cls, rows: int, device: torch.device) -> RowRange:
        """Not yet filled."""
        return cls(*torch.empty((3, rows), dtype=torch.int32, device=device).unbind())


def row_range(queries: Queries, lengths: torch.Tensor, ranges: RowRange, *, warps: int = 4) -> None:
    """Fill `ranges` alone; `lengths`: int32 [requests + 1], exclusive sums of the sequences' lengths."""
    requests = check_queries(queries, lengths, ranges)
    if not requests or not queries.rows:
        no_request(requests, ranges)
        return
    _range[(triton.cdiv(queries.rows, RANGE_BLOCK),)](
        lengths,
        requests,
        *query_arguments(queries, lengths),
        *ranges,
        HAS_POSITIONS=queries.positions is not None,
        BLOCK=RANGE_BLOCK,
        num_warps=warps,
    )


def row_range_reference(queries: Queries, lengths: torch.Tensor, ranges: RowRange) -> None:
    """`row_range` in plain torch: a row's request is how many requests end at or before it."""
    requests = check_queries(queries, lengths, ranges)
    if not requests:
        no_request(requests, ranges)
        return
    row = torch.arange(queries.rows, device=lengths.device)
    request = torch.bucketize(row, queries.starts[1:].long(), right=True)
    real = request < requests
    request = torch.where(real, request, 0)
    first, end = lengths.long()[request], lengths.long()[request + 1]
    starts = queries.starts.long()
    if queries.positions is None:
        last = first + (end - first) - (starts[request + 1] - row) + 1
    else:
        padded = torch.zeros(queries.rows, dtype=torch.int64, device=lengths.device)
        known = queries.positions[: queries.rows]
        padded[: known.numel()] = known
        last = first + padded + 1
    ranges.first.copy_(torch.where(real, first, 0))
    ranges.end.copy_(torch.where(real, last, 0))
    ranges.request.copy_(request)


def no_request(requests: int, ranges: RowRange) -> None:
    """A rank without requests: all its rows are padding."""
    if not requests:
        for part in ranges:
            part.zero_()


def query_arguments(queries: Queries, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    positions = lengths if queries.positions is None else queries.positions
    return queries.starts, positions, queries.rows


def check_queries(queries: Queries, lengths: torch.Tensor, ranges: RowRange) -> int:
    if lengths.dtype != torch.int32 or queries.starts.dtype != torch.int32:
        raise ValueError(f"lengths is {lengths.dtype}, starts {queries.starts.dtype}: give int32")
    if lengths.dim() != 1 or queries.starts.shape != lengths.shape or not lengths.numel():
        raise ValueError(
            f"lengths has shape {tuple(lengths.shape)}, starts {tuple(queries.starts.shape)}: give "
            "[requests + 1] of both"
        )
    if not (lengths.is_contiguous() and queries.starts.is_contiguous()):
        raise ValueError("lengths and starts must be contiguous")
    for part in ranges:
        if part.shape != (queries.rows,) or part.dtype != torch.int32 or not part.is_contiguous():
            raise ValueError(f"a range is {part.dtype} {tuple(part.shape)}: give int32 [{queries.rows}]")
    positions = queries.positions
    if positions is not None and (positions.dim() != 1 or not positions.is_contiguous()):
        raise ValueError("positions must be 1-D and contiguous")
    return lengths.numel() - 1


@triton.jit  # type: ignore[untyped-decorator]
def ranges_of(
    block: tl.tensor,
    lengths: tl.tensor,
    requests: tl.tensor,
    starts: tl.tensor,
    positions: tl.tensor,
    rows: tl.tensor,
    first_out: tl.tensor,
    end_out: tl.tensor,
    request_out: tl.tensor,
    HAS_POSITIONS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = block * BLOCK + tl.arange(0, BLOCK)
    request = tl.zeros([BLOCK], tl.int32)
    for one in range(requests):
        request += (row >= tl.load(starts + one + 1)).to(tl.int32)
    real = (row < rows) & (request < requests)
    request = tl.where(real, request, 0)
    first = tl.load(lengths + request, mask=real, other=0)
    if HAS_POSITIONS:
        end = first + tl.load(positions + row, mask=real, other=0).to(tl.int32) + 1
    else:
        after = tl.load(starts + request + 1, mask=real, other=0) - row
        end = tl.load(lengths + request + 1, mask=real, other=0) - after + 1
    tl.store(first_out + row, first, mask=row < rows)
    tl.store(end_out + row, tl.where(real, end, 0), mask=row < rows)
    tl.store(request_out + row, request, mask=row < rows)


@triton.jit(do_not_specialize=["requests", "rows"])  # type: ignore[untyped-decorator]
def _range(
    lengths: tl.tensor,
    requests: tl.tensor,
    starts: tl.tensor,
    positions: tl.tensor,
    rows: tl.tensor,
    first_out: tl.tensor,
    end_out: tl.tensor,
    request_out: tl.tensor,
    HAS_POSITIONS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    ranges_of(
        tl.program_id(0),
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
