"""Every kernel builds for an H200 in the shapes that the engine uses, and moves whole vectors."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
from tests.unit.kernels.compiled import recorded, vectors

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
from plait.kernels.row_range import Queries, RowRange
from plait.kernels.store_index import Rounding

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="under the interpreter nothing is compiled"
)

I32, I64, U8, BF16, FP8 = torch.int32, torch.int64, torch.uint8, torch.bfloat16, torch.float8_e4m3fn
CPU = torch.device("cpu")


def ids(count: int, dtype: torch.dtype = I32) -> torch.Tensor:
    return torch.zeros(count, dtype=dtype)


def pulled(page_bytes: int, dtype: torch.dtype, config: pull.PullConfig) -> None:
    spanning, out = torch.zeros(8 * page_bytes, dtype=U8), torch.zeros(4, page_bytes, dtype=U8)
    lists = [ids(3, dtype) for _ in range(3)]
    pull.pull(spanning, 4 * page_bytes, page_bytes, *lists, out, config=config)


def rows_pulled(page_bytes: int, parts: tuple[pull_rows.RowPart, ...]) -> None:
    spanning, out = torch.zeros(8 * page_bytes, dtype=U8), torch.zeros(4, page_bytes, dtype=U8)
    pull_rows.pull_rows(spanning, 4 * page_bytes, page_bytes, *[ids(3)] * 5, out, parts=parts)


def stored(dtype: torch.dtype, width: int, config: store_mla.StoreConfig, source: torch.dtype = BF16) -> None:
    buffer = torch.zeros(128, 1, width, dtype=dtype)
    both = torch.zeros(20, 576, dtype=source)
    store_mla.store_mla(buffer, ids(17, I64), both[:, :512], both[:, 512:], rank=1, ranks=4, config=config)


def index_stored(rounding: Rounding | None, config: store_mla.StoreConfig) -> None:
    buffer, slots = torch.zeros(3, 8448, dtype=U8), ids(17, I64)
    if rounding is None:
        key, scale = torch.zeros(17, 128, dtype=FP8), torch.zeros(17, 1)
        store_index.store_index(buffer, slots, key, scale, rank=0, ranks=2, config=config)
    else:
        key = torch.zeros(17, 192, dtype=BF16)[:, :128]
        store_index.store_index_key(buffer, slots, key, rounding=rounding, rank=0, ranks=2, config=config)


def index_read(positions: torch.Tensor | None, config: read_index.ReadConfig) -> None:
    out = read_index.IndexKeys.empty(200, CPU)
    queries = Queries(ids(3), positions, 20)
    pages_ = torch.zeros(4, 8448, dtype=U8)
    ranges = RowRange.empty(20, CPU)
    read_index.read_index(
        pages_, torch.zeros(2, 5, dtype=I32), ids(3), queries, out, ranges, longest=190, config=config
    )


def ranged(positions: torch.Tensor | None) -> None:
    row_range.row_range(Queries(ids(3), positions, 20), ids(3), RowRange.empty(20, CPU))


def reranged(width: int, dtype: torch.dtype, config: rerange.RerangeConfig, *, by_index: bool) -> None:
    rows, out = torch.zeros(80, width, dtype=dtype), torch.zeros(70, width, dtype=dtype)
    if by_index:
        rerange.take_rows(rows, ids(70, I64), out, config=config)
    else:
        rerange.rerange(rows, rerange.Segments(ids(2), ids(2), ids(2), 64), out, config=config)


def converted(config: store_mla.StoreConfig, *, by_page: bool) -> None:
    pool = torch.zeros(4 * 41984, dtype=U8)
    out = torch.zeros(128, 1, 576, dtype=BF16)
    if by_page:
        convert.convert_pages(pool, 2 * 41984, ids(2), ids(2), ids(2), out, config=config)
    else:
        convert.convert_rows(pool.view(-1, 1, 656), ids(128), out, config=config)


def mapped(dtype: torch.dtype) -> None:
    table, inverse = torch.zeros(3, 40, dtype=dtype), ids(50)
    pages.dense_slots(table, inverse, table)
    pages.dense_pages(table, inverse, table)
    pages.peer_slots(table, table, ranks=4, rows_per_rank=640)
    pages.peer_pages(table, table, ranks=4, pages_per_rank=10)
    pages.page_inverse(ids(30, dtype), inverse)


PARTS = ((41984, pull_rows.mla_parts(656)), (73728, pull_rows.mla_parts(1152)), (8448, pull_rows.INDEX_PARTS))
WIDE = {
    **{
        f"pull {size} {dtype} {config}": lambda s=size, d=dtype, c=config: pulled(s, d, c)
        for size in (41984, 73728, 8448)
        for dtype in (I32, I64)
        for config in pull.CONFIGS[: 1 if dtype is I64 else None]
    },
    **{f"pull_rows {size}": lambda s=size, p=parts: rows_pulled(s, p) for size, parts in PARTS},
    **{f"store packed {c}": lambda c=c: stored(U8, 656, c) for c in store_mla.CONFIGS},
    **{f"store bf16 {c}": lambda c=c: stored(BF16, 576, c) for c in store_mla.CONFIGS},
    **{f"index given {c}": lambda c=c: index_stored(None, c) for c in store_index.CONFIGS},
    **{f"read index {c}": lambda c=c: index_read(ids(20, I64), c) for c in read_index.CONFIGS},
    **{
        f"convert {by} {c}": lambda b=by, c=c: converted(c, by_page=b)
        for by in (True, False)
        for c in convert.CONFIGS
    },
    **{f"rerange {c}": lambda c=c: reranged(576, BF16, c, by_index=False) for c in rerange.CONFIGS},
    **{f"take {c}": lambda c=c: reranged(576, BF16, c, by_index=True) for c in rerange.CONFIGS},
}
OTHER: dict[str, Callable[[], None]] = {
    **{f"index {r.name}": lambda r=r: index_stored(r, store_index.CONFIGS[0]) for r in Rounding},
    "read index, last rows": lambda: index_read(None, read_index.CONFIGS[0]),
    "row range": lambda: ranged(ids(20)),
    "row range, last rows": lambda: ranged(None),
    "store fp32": lambda: stored(torch.float32, 576, store_mla.CONFIGS[0], torch.float32),
    "rerange odd": lambda: reranged(33, U8, rerange.CONFIGS[0], by_index=False),
    "take odd": lambda: reranged(33, BF16, rerange.CONFIGS[0], by_index=True),
    "maps int32": lambda: mapped(I32),
    "maps int64": lambda: mapped(I64),
}


@pytest.mark.parametrize("name", WIDE)
def test_builds_and_moves_sixteen_bytes_at_once(name: str) -> None:
    with recorded() as launches:
        WIDE[name]()
    (launch,) = launches
    built = launch.build()
    found = vectors(built)
    assert "ld.v4.b32" in found, found
    assert "st.v4.b32" in found, found


@pytest.mark.parametrize("name", OTHER)
def test_builds(name: str) -> None:
    with recorded() as launches:
        OTHER[name]()
    assert launches
    for launch in launches:
        launch.build()
