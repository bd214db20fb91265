"""All ranks' gathered padded rows back in token order.

A rank's rows of one page lie together in both orders, so the kernel moves whole stretches by a table of
segments (`segments`, made once per batch on the host) instead of looking every row up; `take_rows` does look
them up, for orders that have no stretches. Both splits, rows of any width.
"""
# ruff: noqa: N803 (constant arguments of kernels are upper case, as everywhere in Triton)

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

from plait.layout.pages import Int64Array


class RerangeConfig(NamedTuple):
    """chunk: bytes that a program moves. warps: per program."""

    chunk: int
    warps: int


CONFIGS = (
    RerangeConfig(8192, 4),
    RerangeConfig(16384, 8),
    RerangeConfig(4096, 4),
    RerangeConfig(2048, 2),
)


class Segments(NamedTuple):
    """Stretches that follow one another in rows and in tokens, on the device, int32 [segments] each.

    Rows source .. source + length become tokens target .. target + length; `longest`: the greatest length.
    """

    source: torch.Tensor
    target: torch.Tensor
    length: torch.Tensor
    longest: int

    def to(self, device: torch.device) -> Segments:
        """The same on `device`; one copy each, without a wait."""
        source, target, length = (part.to(device, non_blocking=True) for part in self[:3])
        return Segments(source, target, length, self.longest)


def segments(index: Int64Array, *, at_most: int) -> Segments:
    """The stretches of a restore index (row of each token, np.int64 [tokens]), none longer than `at_most`.

    Host tensors. Equal pieces keep the kernel's programs equally long: a page's 64 rows is a good `at_most`.
    """
    if at_most < 1:
        raise ValueError(f"at_most is {at_most}: a segment has at least one row")
    tokens = len(index)
    breaks = np.flatnonzero(np.diff(index) != 1) + 1
    starts = np.concatenate([[0], breaks]).astype(np.int64) if tokens else np.empty(0, dtype=np.int64)
    lengths = np.diff(np.append(starts, tokens))
    pieces = -(-lengths // at_most)
    inside = np.arange(int(pieces.sum()), dtype=np.int64) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    target = np.repeat(starts, pieces) + inside * at_most
    count = np.minimum(np.repeat(starts + lengths, pieces) - target, at_most)
    source = index[target] if tokens else target
    source, target, length = (part.astype(np.int32) for part in (source, target, count))
    longest = int(count.max()) if tokens else 0
    return Segments(torch.from_numpy(source), torch.from_numpy(target), torch.from_numpy(length), longest)


def rerange(
    rows: torch.Tensor, table: Segments, out: torch.Tensor, *, config: RerangeConfig = CONFIGS[0]
) -> torch.Tensor:
    """Move `rows` [rows, width] into `out` [tokens, width] as `table` says; returns `out`.

    Both contiguous, of one dtype and width. Tokens that no segment names stay as they are.
    """
    words, unit = _words(rows, out)
    count = table.source.numel()
    if count:
        chunk = config.chunk // unit.itemsize
        # Segments on the first axis: the second one ends at 65,535 programs.
        grid = (count, triton.cdiv(table.longest * words, chunk))
        _rerange[grid](
            _as(rows, unit),
            _as(out, unit),
            table.source,
            table.target,
            table.length,
            WORDS=words,
            CHUNK=chunk,
            num_warps=config.warps,
        )
    return out


def rerange_reference(rows: torch.Tensor, table: Segments, out: torch.Tensor) -> torch.Tensor:
    """`rerange` in plain torch: the table unfolded (which syncs), then one gather and one scatter."""
    _words(rows, out)
    length = table.length.long()
    inside = torch.arange(int(length.sum()), device=rows.device)
    inside -= torch.repeat_interleave(length.cumsum(0) - length, length)
    source = torch.repeat_interleave(table.source.long(), length) + inside
    target = torch.repeat_interleave(table.target.long(), length) + inside
    return out.index_copy_(0, target, rows.index_select(0, source))


def take_rows(
    rows: torch.Tensor, index: torch.Tensor, out: torch.Tensor, *, config: RerangeConfig = CONFIGS[0]
) -> torch.Tensor:
    """`out[i] = rows[index[i]]`: `rows` [rows, width], `index` int32 or int64 [tokens]; returns `out`.

    A negative index leaves its row as it is.
    """
    words, unit = _words(rows, out)
    tokens = _tokens(index, out)
    if tokens:
        block = triton.next_power_of_2(words)
        # Both powers of two, so this is one as well.
        per_program = max(1, triton.next_power_of_2(config.chunk // unit.itemsize) // block)
        _take[(triton.cdiv(tokens, per_program),)](
            _as(rows, unit),
            _as(out, unit),
            index,
            tokens,
            WORDS=words,
            BLOCK=block,
            ROWS=per_program,
            num_warps=config.warps,
        )
    return out


def take_rows_reference(rows: torch.Tensor, index: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """`take_rows` in plain torch; without holes it is `torch.index_select(rows, 0, index)`."""
    _words(rows, out)
    _tokens(index, out)
    wanted = index >= 0
    return out.index_copy_(0, wanted.nonzero(as_tuple=True)[0], rows.index_select(0, index[wanted].long()))


def _words(rows: torch.Tensor, out: torch.Tensor) -> tuple[int, torch.dtype]:
    """Width of a row in the widest integers that divide it, and those."""
    if rows.dim() != 2 or out.dim() != 2 or rows.shape[1] != out.shape[1] or rows.dtype != out.dtype:
        raise ValueError(
            f"rows is {rows.dtype} {tuple(rows.shape)}, out {out.dtype} {tuple(out.shape)}: give 2-D tensors "
            "of one dtype and width"
        )
    if not (rows.is_contiguous() and out.is_contiguous()) or not rows.shape[1]:
        raise ValueError("rows and out must be contiguous, with at least one column")
    size = rows.shape[1] * rows.element_size()
    for unit in (torch.int32, torch.int16):
        if all(place % unit.itemsize == 0 for place in (size, rows.data_ptr(), out.data_ptr())):
            return size // unit.itemsize, unit
    return size, torch.uint8


def _as(tensor: torch.Tensor, unit: torch.dtype) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8).view(unit)


def _tokens(index: torch.Tensor, out: torch.Tensor) -> int:
    if index.shape != (out.shape[0],) or index.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"index is {index.dtype} {tuple(index.shape)}: give int32 or int64 [{len(out)}]")
    if not index.is_contiguous():
        raise ValueError("index must be contiguous")
    return index.shape[0]


@triton.jit  # type: ignore[untyped-decorator]
def _rerange(
    rows: tl.tensor,
    out: tl.tensor,
    source: tl.tensor,
    target: tl.tensor,
    length: tl.tensor,
    WORDS: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:
    segment = tl.program_id(0)
    words = tl.load(length + segment) * WORDS
    start = tl.program_id(1) * CHUNK
    if start >= words:
        return
    offset = start + tl.arange(0, CHUNK)
    read = rows + tl.load(source + segment).to(tl.int64) * WORDS
    write = out + tl.load(target + segment).to(tl.int64) * WORDS
    data = tl.load(read + offset, mask=offset < words)
    tl.store(write + offset, data, mask=offset < words)


@triton.jit(do_not_specialize=["tokens"])  # type: ignore[untyped-decorator]
def _take(
    rows: tl.tensor,
    out: tl.tensor,
    index: tl.tensor,
    tokens: tl.tensor,
    WORDS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row = tl.load(index + token, mask=token < tokens, other=-1).to(tl.int64)
    within = tl.arange(0, BLOCK)[None, :]
    wanted = (row >= 0)[:, None] & (within < WORDS)
    data = tl.load(rows + row[:, None] * WORDS + within, mask=wanted)
    tl.store(out + token[:, None] * WORDS + within, data, mask=wanted)
