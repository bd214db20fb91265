"""Copy runs: exact expansion, greedy maximality, and the statistics."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.contract.layouts import Split
from plait.layout.allocator import PageAllocator, PageDemand
from plait.layout.pages import Geometry
from plait.layout.runs import CopyRuns, copy_runs, mean_run_length


def as_tuples(result: CopyRuns) -> list[tuple[int, ...]]:
    columns = (result.owner, result.physical, result.position, result.count, result.stride)
    assert all(column.dtype == np.int64 for column in columns)
    return [tuple(row) for row in np.stack(columns, axis=1).tolist()]


def greedy(pages: list[int], ranks: int) -> list[tuple[int, ...]]:
    """The definition as a walk: a run goes on while the pool is consecutive and the stride stays."""
    found: list[list[int]] = []
    for rank in range(ranks):
        open_run: list[int] | None = None
        for position, page in enumerate(pages):
            if page % ranks != rank:
                continue
            row = page // ranks
            if open_run is not None:
                _, first, start, count, stride = open_run
                step = position - (start + stride * (count - 1))
                if row == first + count and (count == 1 or step == stride):
                    open_run[3:] = [count + 1, step]
                    continue
            open_run = [rank, row, position, 1, 1]
            found.append(open_run)
    return [tuple(run) for run in found]


# Mostly consecutive pages with jumps between: both long runs and chains of stride changes turn up.
@st.composite
def sequences(draw: st.DrawFn) -> tuple[list[int], int]:
    ranks = draw(st.integers(1, 4))
    rows = [draw(st.integers(1, 5)) for _ in range(ranks)]
    pages = []
    for rank in draw(st.lists(st.integers(0, ranks - 1), max_size=60)):
        pages.append(rows[rank] * ranks + rank)
        rows[rank] += draw(st.sampled_from([1, 1, 1, 1, 1, 2, 4]))
    return pages, ranks


@settings(max_examples=300, deadline=None)
@given(sequences())
def test_equals_the_greedy_walk_and_expands_exactly(case: tuple[list[int], int]) -> None:
    pages, ranks = case
    result = copy_runs(np.array(pages, dtype=np.int64), ranks)
    assert as_tuples(result) == greedy(pages, ranks)
    assert result.expand().tolist() == pages
    assert result.pages == len(pages)


@settings(deadline=None)
@given(ranks=st.integers(1, 5), data=st.data())
def test_any_order_of_pages_expands_exactly(ranks: int, data: st.DataObject) -> None:
    pages = data.draw(st.permutations(range(ranks, ranks + 30)))
    result = copy_runs(np.array(pages), ranks)
    assert result.expand().tolist() == pages
    assert as_tuples(result) == greedy(pages, ranks)


def test_interleaved_sequence_is_one_run_per_owner() -> None:
    result = copy_runs(np.arange(4, 16), 4)
    assert as_tuples(result) == [(0, 1, 0, 3, 4), (1, 1, 1, 3, 4), (2, 1, 2, 3, 4), (3, 1, 3, 3, 4)]
    assert (len(result), result.mean_length) == (4, 3.0)


def test_alternating_strides_break_every_second_link() -> None:
    # One owner's pages at positions 0, 1, 3, 4, 6, 7: strides 1, 2, 1, 2, 1.
    pages = np.array([2, 4, 3, 6, 8, 5, 10, 12])
    of_zero = [run for run in as_tuples(copy_runs(pages, 2)) if run[0] == 0]
    assert of_zero == [(0, 1, 0, 2, 1), (0, 3, 3, 2, 1), (0, 5, 6, 2, 1)]


def test_empty_sequence() -> None:
    result = copy_runs(np.empty(0, dtype=np.int64), 4)
    assert as_tuples(result) == []
    assert result.expand().tolist() == []
    assert (result.pages, result.mean_length) == (0, 0.0)
    assert mean_run_length(np.empty(0, dtype=np.int64), 4) == 0.0


def test_fragments() -> None:
    # Two ranks: rank 0 has a run of 3, rank 1 three single pages.
    result = copy_runs(np.array([2, 3, 4, 9, 6, 21]), 2)
    assert result.count.tolist() == [3, 1, 1, 1]
    assert result.fragment_mask(below=3).tolist() == [False, True, True, True]
    assert result.fragments(below=3) == (3, 3)
    assert result.fragments(below=4) == (4, 6)
    assert result.fragments(below=1) == (0, 0)


def test_mean_run_length_ignores_positions() -> None:
    # Uneven strides, but consecutive in each pool.
    pages = np.array([2, 4, 3, 6, 5, 8])
    assert mean_run_length(pages, 2) == 3.0
    assert copy_runs(pages, 2).mean_length < 3.0
    assert mean_run_length(np.array([2, 6, 10]), 2) == 1.0


def test_reserved_pages_are_refused() -> None:
    with pytest.raises(ValueError, match=r"pages holds 3: ids below 4"):
        copy_runs(np.array([4, 3]), 4)


@pytest.mark.parametrize(("split", "most"), [(Split.PAGE_INTERLEAVE, 8), (Split.PAGE_ZIGZAG, 16)])
def test_a_long_sequence_in_a_fresh_pool_has_few_runs(split: Split, most: int) -> None:
    pool = PageAllocator(Geometry(8, 4096), split=split)
    taken = pool.take([PageDemand(2048)])
    assert taken is not None
    assert len(copy_runs(taken[0], 8)) <= most
