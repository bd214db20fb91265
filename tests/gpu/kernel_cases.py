"""One case of every kernel, of any number of rows, on a device: what `kernels_on_gpu` checks and times.

A case owns its inputs and its guarded, poisoned output. The same builders make odd little cases with holes,
to check, and regular large ones, to time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from tests.gpu.kernel_inputs import RANKS, Case, Maker

from plait.contract.layouts import PAGE_SIZE
from plait.kernels import (
    convert,
    pages,
    pull,
    pull_rows,
    read_index,
    rerange,
    row_range,
    store_index,
    store_mla,
)
from plait.kernels.store_index import Rounding
from plait.kernels.trials import close_rows, same

TABLE_WIDTH = 512


def store_mla_case(make: Maker, rows: int, dtype: torch.dtype, width: int) -> Case:
    slots, pool = make.own_slots(rows)
    nope, rope = make.rows(rows + 3, 512), make.rows(rows + 3, 576)[:, 512:]
    out = make.out(pool * PAGE_SIZE, width, dtype=dtype)
    arguments = (out.tensor, slots, nope, rope)
    packed = dtype == torch.uint8
    return Case(
        lambda c: store_mla.store_mla(*arguments, rank=1, ranks=RANKS, config=c),
        lambda: store_mla.store_mla_reference(*arguments, rank=1, ranks=RANKS),
        (out,),
        rows * (1152 + width * dtype.itemsize + 8),
        close_rows if packed else same,
    )


def store_index_case(make: Maker, rows: int, rounding: Rounding | None) -> Case:
    slots, pool = make.own_slots(rows)
    out = make.out(pool, store_index.PAGE_BYTES)
    if rounding is None:
        key, scale = make.bytes(rows, 128).view(torch.float8_e4m3fn), make.rows(rows, 1, dtype=torch.float32)
        given = (out.tensor, slots, key, scale)
        return Case(
            lambda c: store_index.store_index(*given, rank=1, ranks=RANKS, config=c),
            lambda: store_index.store_index_reference(*given, rank=1, ranks=RANKS),
            (out,),
            rows * (132 * 2 + 8),
        )
    raw = (out.tensor, slots, make.rows(rows, 128))
    return Case(
        lambda c: store_index.store_index_key(*raw, rounding=rounding, rank=1, ranks=RANKS, config=c),
        lambda: store_index.store_index_key_reference(*raw, rounding=rounding, rank=1, ranks=RANKS),
        (out,),
        rows * (256 + 132 + 8),
    )


def pages_case(make: Maker, rows: int, which: str) -> Case:
    need = -(-rows // PAGE_SIZE)
    size = RANKS * (need + 2)
    dense = make.ids(make.rng.permutation(size)[:need])
    if which == "page_inverse":
        out = make.out(size, dtype=torch.int32)
        return Case(
            lambda c: pages.page_inverse(dense, out.tensor, config=c),
            lambda: pages.page_inverse_reference(dense, out.tensor),
            (out,),
            4 * (size + 2 * need),
        )
    ids = make.ids(make.rng.integers(0, size * PAGE_SIZE, (rows, TABLE_WIDTH)))
    out = make.out(rows, TABLE_WIDTH, dtype=torch.int32)
    if which == "dense_slots":
        inverse = torch.empty(size, dtype=torch.int32, device=make.device)
        pages.page_inverse_reference(dense, inverse)
        arguments: tuple[Any, ...] = (ids, inverse, out.tensor)
        options = {}
    else:
        arguments, options = (ids, out.tensor), {"ranks": RANKS, "rows_per_rank": (need + 3) * PAGE_SIZE}
    kernel, reference = getattr(pages, which), getattr(pages, f"{which}_reference")
    return Case(
        lambda c: kernel(*arguments, **options, config=c),
        lambda: reference(*arguments, **options),
        (out,),
        8 * ids.numel(),
    )


def pull_case(make: Maker, rows: int, page_bytes: int) -> Case:
    *source, need = make.peers(rows, page_bytes)
    data, stride, *lists = source
    out = make.out(need, page_bytes)
    first = int(make.rng.integers(0, need + 1))
    return Case(
        lambda c: pull.pull(data, stride, page_bytes, *lists, out.tensor, first=first, config=c),
        lambda: pull.pull_reference(data, stride, page_bytes, *lists, out.tensor),
        (out,),
        2 * need * page_bytes,
    )


def pull_rows_case(make: Maker, rows: int, page_bytes: int, parts: tuple[pull_rows.RowPart, ...]) -> Case:
    *source, need = make.peers(rows, page_bytes)
    data, stride, *lists = source
    bounds = np.zeros((need, 2), dtype=np.int64)
    bounds[:, 1] = PAGE_SIZE
    if make.holes:
        bounds = np.sort(make.rng.integers(0, PAGE_SIZE + 1, (need, 2)), axis=1)
    arguments = (data, stride, page_bytes, *lists, make.plain(bounds[:, 0]), make.plain(bounds[:, 1]))
    out = make.out(need, page_bytes)
    return Case(
        lambda c: pull_rows.pull_rows(*arguments, out.tensor, parts=parts, config=c),
        lambda: pull_rows.pull_rows_reference(*arguments, out.tensor, parts=parts),
        (out,),
        2 * need * page_bytes,
    )


def rerange_case(make: Maker, rows: int, width: int, dtype: torch.dtype, *, by_index: bool) -> Case:
    need = -(-rows // PAGE_SIZE)
    owner = make.rng.integers(0, RANKS, need) if make.holes else np.arange(need) % RANKS
    sizes = np.full(need, PAGE_SIZE)
    sizes[-1] = rows - (need - 1) * PAGE_SIZE
    local = np.zeros(need, dtype=np.int64)
    for rank in range(RANKS):
        local[owner == rank] = np.cumsum(sizes[owner == rank]) - sizes[owner == rank]
    padded = max(int(sizes[owner == rank].sum()) for rank in range(RANKS)) + 1
    index = np.repeat(owner * padded + local - (np.cumsum(sizes) - sizes), sizes) + np.arange(rows)
    source = make.bytes(RANKS * padded, width * dtype.itemsize).view(dtype)
    out = make.out(rows, width, dtype=dtype)
    ids, table = make.plain(index, torch.int64), rerange.segments(index, at_most=PAGE_SIZE).to(make.device)
    nbytes = 2 * rows * width * dtype.itemsize
    if by_index:
        return Case(
            lambda c: rerange.take_rows(source, ids, out.tensor, config=c),
            lambda: torch.index_select(source, 0, ids, out=out.tensor),
            (out,),
            nbytes + 8 * rows,
        )
    return Case(
        lambda c: rerange.rerange(source, table, out.tensor, config=c),
        lambda: torch.index_select(source, 0, ids, out=out.tensor),
        (out,),
        nbytes,
    )


def read_index_case(make: Maker, rows: int) -> Case:
    cuts = np.sort(make.rng.integers(0, rows + 1, 3)) if make.holes else np.arange(1, 4) * (rows // 4)
    sums = np.array([0, *cuts.tolist(), rows])
    longest = int(np.diff(sums).max())
    width = -(-longest // PAGE_SIZE)
    pool = make.bytes(4 * width + 5, store_index.PAGE_BYTES)
    table = make.plain(make.rng.integers(0, 4 * width + 5, (4, width + 1)))
    asked = np.minimum(np.diff(sums), 500)
    starts = np.concatenate([[0], np.cumsum(asked)])
    queries = row_range.Queries(make.plain(starts), None, int(starts[-1]) + 2)
    keys, scales = make.out(rows, 128, dtype=torch.float8_e4m3fn), make.out(rows, dtype=torch.float32)
    ranges = [make.out(queries.rows, dtype=torch.int32) for _ in range(3)]
    out, found = (
        read_index.IndexKeys(keys.tensor, scales.tensor),
        row_range.RowRange(*(r.tensor for r in ranges)),
    )
    arguments = (pool, table, make.plain(sums), queries, out, found)
    return Case(
        lambda c: read_index.read_index(*arguments, longest=longest, config=c),
        lambda: read_index.read_index_reference(*arguments, longest=longest),
        (keys, scales, *ranges),
        2 * 132 * rows + 12 * queries.rows,
    )


def row_range_case(make: Maker, rows: int) -> Case:
    starts = make.plain([0, rows // 3, rows // 2, rows])
    positions = make.plain(make.rng.integers(0, 200000, rows), torch.int64)
    queries = row_range.Queries(starts, positions, rows + (1 if make.holes else 0))
    ranges = [make.out(queries.rows, dtype=torch.int32) for _ in range(3)]
    lengths, found = make.plain([0, 300000, 500000, 900000]), row_range.RowRange(*(r.tensor for r in ranges))
    return Case(
        lambda c: row_range.row_range(queries, lengths, found, warps=c),
        lambda: row_range.row_range_reference(queries, lengths, found),
        tuple(ranges),
        rows * (8 + 12),
    )


def convert_case(make: Maker, rows: int, *, by_page: bool) -> Case:
    if by_page:
        *source, need = make.peers(rows, convert.PAGE_BYTES, packed=True)
        out = make.out(need * PAGE_SIZE, convert.WIDTH, dtype=torch.bfloat16)
        return Case(
            lambda c: convert.convert_pages(*source, out.tensor, config=c),
            lambda: convert.convert_pages_reference(*source, out.tensor),
            (out,),
            need * PAGE_SIZE * (656 + 1152),
        )
    pool, out = make.packed(rows + 70), make.out(rows, convert.WIDTH, dtype=torch.bfloat16)
    slots = make.ids(make.rng.permutation(rows + 70)[:rows] if make.holes else np.arange(64, rows + 64))
    return Case(
        lambda c: convert.convert_rows(pool, slots, out.tensor, config=c),
        lambda: convert.convert_rows_reference(pool, slots, out.tensor),
        (out,),
        rows * (656 + 1152 + 4),
    )


class Kind(NamedTuple):
    """configs: the ones shipped. build(make, rows). large: also timed at 128K rows."""

    configs: tuple[Any, ...]
    build: Callable[[Maker, int], Case]
    large: bool = False


BF16, U8 = torch.bfloat16, torch.uint8
MLA, INDEX, MLA_BF16 = 41984, store_index.PAGE_BYTES, 73728
KINDS = {
    "store_mla fp8": Kind(store_mla.CONFIGS, lambda m, n: store_mla_case(m, n, U8, 656)),
    "store_mla bf16": Kind(store_mla.CONFIGS, lambda m, n: store_mla_case(m, n, BF16, 576)),
    "store_index given": Kind(store_index.CONFIGS, lambda m, n: store_index_case(m, n, None)),
    "store_index fused": Kind(store_index.CONFIGS, lambda m, n: store_index_case(m, n, Rounding.FUSED)),
    "store_index 2^n": Kind(
        store_index.CONFIGS[:1], lambda m, n: store_index_case(m, n, Rounding.POWER_OF_TWO)
    ),
    "page_inverse": Kind(pages.CONFIGS[:2], lambda m, n: pages_case(m, n, "page_inverse")),
    "dense_slots": Kind(pages.CONFIGS, lambda m, n: pages_case(m, n, "dense_slots")),
    "peer_slots": Kind(pages.CONFIGS, lambda m, n: pages_case(m, n, "peer_slots")),
    "pull mla": Kind(pull.CONFIGS, lambda m, n: pull_case(m, n, MLA), large=True),
    "pull mla bf16": Kind(pull.CONFIGS[:1], lambda m, n: pull_case(m, n, MLA_BF16)),
    "pull index": Kind(pull.CONFIGS, lambda m, n: pull_case(m, n, INDEX), large=True),
    "pull_rows mla": Kind(pull.CONFIGS[:2], lambda m, n: pull_rows_case(m, n, MLA, pull_rows.mla_parts(656))),
    "pull_rows index": Kind(
        pull.CONFIGS[:2], lambda m, n: pull_rows_case(m, n, INDEX, pull_rows.INDEX_PARTS)
    ),
    "rerange": Kind(rerange.CONFIGS, lambda m, n: rerange_case(m, n, 576, BF16, by_index=False)),
    "rerange 128": Kind(rerange.CONFIGS, lambda m, n: rerange_case(m, n, 128, BF16, by_index=False)),
    "take_rows": Kind(rerange.CONFIGS, lambda m, n: rerange_case(m, n, 576, BF16, by_index=True)),
    "read_index": Kind(read_index.CONFIGS, read_index_case, large=True),
    "row_range": Kind((4, 1), row_range_case),
    "convert_rows": Kind(convert.CONFIGS, lambda m, n: convert_case(m, n, by_page=False), large=True),
    "convert_pages": Kind(convert.CONFIGS, lambda m, n: convert_case(m, n, by_page=True), large=True),
}
