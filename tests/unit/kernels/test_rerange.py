"""Gathered padded rows back in token order: by segments and by index, for real splits and for any order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.unit.kernels import interpreter  # noqa: F401
from tests.unit.kernels.guarded import POISON, Guarded, random_bytes, same_bytes

from plait.kernels.rerange import (
    CONFIGS,
    RerangeConfig,
    Segments,
    rerange,
    rerange_reference,
    segments,
    take_rows,
    take_rows_reference,
)
from plait.layout import SplitPlan, SplitRequest

SMALL = RerangeConfig(64, 4)
WIDTHS = [(1, torch.uint8), (3, torch.uint8), (1, torch.float32), (17, torch.bfloat16), (24, torch.bfloat16)]


def restore_index(
    rng: np.random.Generator, ranks: int
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], int]:
    """The restore index of a random batch, and rows of the gathered tensor."""
    requests, taken = [], rng.permutation(np.arange(ranks, 400))
    for _ in range(int(rng.integers(1, 4))):
        extend = int(rng.integers(1, 200))
        count = -(-extend // 64)
        pages, taken = taken[:count], taken[count:]
        if rng.random() < 0.5:  # a page-interleaved request, as the allocator prefers
            pages = np.sort(pages)
        requests.append(SplitRequest(0, extend, pages.astype(np.int64)))
    plan = SplitPlan.from_pages(requests, ranks=ranks)
    padded = plan.max_length + int(rng.integers(0, 3))
    return plan.gather_index(padded), ranks * padded


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_segments_unfold_to_the_index(ranks: int) -> None:
    rng = np.random.default_rng(ranks)
    for _ in range(30):
        index, _ = restore_index(rng, ranks)
        if rng.random() < 0.3:
            index = rng.permutation(index)
        at_most = int(rng.integers(1, 100))
        table = segments(index, at_most=at_most)
        unfolded = np.full(len(index), -1)
        for source, target, count in zip(*(part.tolist() for part in table[:3]), strict=True):
            assert 1 <= count <= at_most
            assert (unfolded[target : target + count] == -1).all()
            unfolded[target : target + count] = np.arange(source, source + count)
        assert (unfolded == index).all()
        assert table.longest == int(table.length.max())


@pytest.mark.parametrize(("width", "dtype"), WIDTHS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_rows_come_back_in_token_order(ranks: int, width: int, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(width * ranks)
    for config in (SMALL, CONFIGS[0]):
        index, rows_count = restore_index(rng, ranks)
        rows = random_bytes(rng, rows_count, width * dtype.itemsize).view(dtype)
        plain = rows[torch.from_numpy(index)]
        table = segments(index, at_most=64)
        out, expected = Guarded((len(index), width), dtype), Guarded((len(index), width), dtype)
        rerange(rows, table, out.tensor, config=config)
        rerange_reference(rows, table, expected.tensor)
        out.check()
        assert same_bytes(out.tensor, plain)
        assert same_bytes(expected.tensor, plain)
        ids = torch.from_numpy(index).to(torch.int32 if ranks == 2 else torch.int64)
        out = Guarded((len(index), width), dtype)
        take_rows(rows, ids, out.tensor, config=config)
        out.check()
        assert same_bytes(out.tensor, plain)


def test_nothing_to_move() -> None:
    rows, out = torch.zeros(3, 8), Guarded((0, 8), torch.float32)
    empty = segments(np.empty(0, dtype=np.int64), at_most=64)
    assert empty.longest == 0
    rerange(rows, empty, out.tensor)
    rerange_reference(rows, empty, out.tensor)
    take_rows(rows, torch.empty(0, dtype=torch.int64), out.tensor)
    out.check()


def test_holes_and_unnamed_tokens_stay() -> None:
    rng = np.random.default_rng(9)
    rows = random_bytes(rng, 6, 12)
    index = torch.tensor([5, -1, 0, 0, -1], dtype=torch.int64)
    out, expected = Guarded((5, 12)), Guarded((5, 12))
    take_rows(rows, index, out.tensor, config=SMALL)
    take_rows_reference(rows, index, expected.tensor)
    assert same_bytes(out.tensor, expected.tensor)
    assert bool((out.tensor[[1, 4]] == POISON).all())
    table = Segments(*(torch.tensor(part, dtype=torch.int32) for part in ([1], [2], [2])), longest=2)
    out = Guarded((5, 12))
    rerange(rows, table, out.tensor, config=SMALL)
    assert same_bytes(out.tensor[2:4], rows[1:3])
    assert bool((out.tensor[[0, 1, 4]] == POISON).all())


def test_what_does_not_fit_is_refused() -> None:
    rows = torch.zeros(4, 6)
    table = segments(np.arange(4), at_most=64)
    with pytest.raises(ValueError, match="one dtype and width"):
        rerange(rows, table, torch.zeros(4, 5))
    with pytest.raises(ValueError, match="one dtype and width"):
        rerange(rows, table, torch.zeros(4, 6, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="contiguous"):
        rerange(rows[:, ::2], table, torch.zeros(4, 3))
    with pytest.raises(ValueError, match="index is"):
        take_rows(rows, torch.zeros(3, dtype=torch.int64), torch.zeros(4, 6))
    with pytest.raises(ValueError, match="at least one row"):
        segments(np.arange(4), at_most=0)
