"""Index reads: keys, scales and row ranges in one launch, in stock's bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.unit.kernels import interpreter  # noqa: F401
from tests.unit.kernels.guarded import Guarded, random_bytes, same_bytes
from tests.unit.kernels.stock import stock

from plait.contract.layouts import PAGE_SIZE
from plait.kernels.read_index import CONFIGS, IndexKeys, ReadConfig, read_index, read_index_reference
from plait.kernels.row_range import Queries, RowRange, row_range_reference

CPU = torch.device("cpu")
BATCHES = ([1], [64], [65], [63, 1, 128], [200, 64], [], [5, 0, 70])


def tables(
    rng: np.random.Generator, lengths: list[int], dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    pages = random_bytes(rng, 9, 8448)
    width = max([-(-length // PAGE_SIZE) for length in lengths], default=0) + 2
    table = torch.from_numpy(rng.integers(0, 9, (len(lengths), width))).to(dtype)
    table[:, -1] = -1  # beyond all sequences: never to be read
    sums = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    return pages, table, sums


@pytest.mark.parametrize("config", [*CONFIGS, ReadConfig(8, 1)])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_reads_what_the_reference_reads(dtype: torch.dtype, config: ReadConfig) -> None:
    rng = np.random.default_rng(config.rows)
    for lengths in BATCHES:
        pages, table, sums = tables(rng, lengths, dtype)
        extends = [int(rng.integers(0, length + 1)) for length in lengths]
        starts = torch.from_numpy(np.concatenate([[0], np.cumsum(extends)]).astype(np.int32))
        rows = int(starts[-1]) + int(rng.integers(0, 3))
        queries = Queries(starts, None, rows)
        keys = Guarded((sum(lengths), 128), torch.float8_e4m3fn)
        scales = Guarded((sum(lengths),), torch.float32)
        out, ranges = IndexKeys(keys.tensor, scales.tensor), RowRange.empty(rows, CPU)
        longest = max(lengths, default=0)
        read_index(pages, table, sums, queries, out, ranges, longest=longest, config=config)
        expected, wanted = IndexKeys.empty(sum(lengths), CPU), RowRange.empty(rows, CPU)
        read_index_reference(pages, table, sums, queries, expected, wanted, longest=longest)
        keys.check()
        scales.check()
        assert same_bytes(out.keys, expected.keys)
        assert same_bytes(out.scales, expected.scales)
        assert [part.tolist() for part in ranges] == [part.tolist() for part in wanted]


def test_reads_stock_bytes() -> None:
    rng = np.random.default_rng(2)
    lengths = [200, 1, 64, 65]
    pages, table, sums = tables(rng, lengths, torch.int32)
    table[:, -1] = 0
    read = stock("index_buf_accessor")._get_k_and_s_triton
    keys, scales = read(pages, table, torch.tensor(lengths), sum(lengths), max(lengths), PAGE_SIZE, 128)
    out, ranges = IndexKeys.empty(sum(lengths), CPU), RowRange.empty(4, CPU)
    queries = Queries(torch.arange(5, dtype=torch.int32), None, 4)
    read_index(pages, table, sums, queries, out, ranges, longest=max(lengths))
    assert same_bytes(out.keys, keys)
    assert same_bytes(out.scales, scales)
    wanted = RowRange.empty(4, CPU)
    row_range_reference(queries, sums, wanted)
    assert [part.tolist() for part in ranges] == [part.tolist() for part in wanted]


def test_what_does_not_fit_is_refused() -> None:
    rng = np.random.default_rng(3)
    pages, table, sums = tables(rng, [70], torch.int32)
    out, ranges = IndexKeys.empty(70, CPU), RowRange.empty(1, CPU)
    queries = Queries(torch.tensor([0, 1], dtype=torch.int32), None, 1)
    with pytest.raises(ValueError, match="pages is"):
        read_index(pages[:, 4:], table, sums, queries, out, ranges, longest=70)
    with pytest.raises(ValueError, match="table has"):
        read_index(pages, table, sums, queries, out, ranges, longest=700)
    with pytest.raises(ValueError, match="table is"):
        read_index(pages, table.float(), sums, queries, out, ranges, longest=70)
    with pytest.raises(ValueError, match="keys is"):
        read_index(pages, table, sums, queries, IndexKeys(out.keys[1:], out.scales), ranges, longest=70)
