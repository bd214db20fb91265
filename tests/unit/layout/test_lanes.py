"""Lane preferences against their definitions, page by page."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.layout import lanes

free_lanes = st.lists(st.integers(0, 30), min_size=1, max_size=8)


def naive_settle(preferred: list[int], available: list[int]) -> tuple[list[int], int]:
    """Page by page: first who can stay on the preferred lane, then the others from the fullest lane."""
    left = list(available)
    result: list[int | None] = []
    for lane in preferred:
        if left[lane]:
            left[lane] -= 1
            result.append(lane)
        else:
            result.append(None)
    moved = 0
    settled = []
    for lane in result:
        if lane is None:
            lane = max(range(len(left)), key=lambda k: (left[k], -k))
            left[lane] -= 1
            moved += 1
        settled.append(lane)
    assert min(left) >= 0
    return settled, moved


@settings(deadline=None)
@given(available=free_lanes, data=st.data())
def test_settle_equals_page_by_page(available: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(0, sum(available)))
    preferred = data.draw(st.lists(st.integers(0, len(available) - 1), min_size=count, max_size=count))
    settled = lanes.settle(np.array(preferred, dtype=np.int64), np.array(available, dtype=np.int64))
    expected, moved = naive_settle(preferred, available)
    assert settled.lanes.tolist() == expected
    assert settled.off_lane == moved


def test_settle_keeps_its_input() -> None:
    preferred = np.zeros(4, dtype=np.int64)
    assert lanes.settle(preferred, np.array([1, 5])).lanes.tolist() == [0, 1, 1, 1]
    assert preferred.tolist() == [0, 0, 0, 0]


def test_interleave_starts_on_the_fullest_lane() -> None:
    assert lanes.interleave(5, last_lane=None, available=np.array([3, 7, 7, 1])).tolist() == [1, 2, 3, 0, 1]
    assert lanes.interleave(3, last_lane=None, available=np.array([4, 4])).tolist() == [0, 1, 0]


def test_interleave_continues_after_the_last_page() -> None:
    assert lanes.interleave(5, last_lane=2, available=np.array([3, 7, 7, 1])).tolist() == [3, 0, 1, 2, 3]
    assert lanes.interleave(0, last_lane=2, available=np.array([3, 7, 7, 1])).tolist() == []


@settings(deadline=None)
@given(available=free_lanes, count=st.integers(0, 200))
def test_zigzag_segments(available: list[int], count: int) -> None:
    ranks = len(available)
    result = lanes.zigzag(count, available=np.array(available, dtype=np.int64))
    assert len(result) == count
    # Contiguous segments in the order 0..N-1, N-1..0, empty ones allowed.
    walk = [*range(ranks), *reversed(range(ranks))]
    sizes = [0] * len(walk)
    segment = 0
    for lane in result.tolist():
        while walk[segment] != lane:
            segment += 1
        sizes[segment] += 1
    # The two middle segments are one rank's: the cut between them cannot be seen, so it may be anywhere.
    middle = sizes[ranks - 1] + sizes[ranks]
    others = sizes[: ranks - 1] + sizes[ranks + 1 :]
    base = count // (2 * ranks)
    assert set(others) <= {base, base + 1}
    assert 2 * base <= middle <= 2 * base + 2
    per_rank = np.bincount(result, minlength=ranks)
    assert per_rank.max() - per_rank.min() <= 1


def test_zigzag_on_a_balanced_pool_is_the_textbook_split() -> None:
    even = np.array([9, 9, 9])
    assert lanes.zigzag(12, available=even).tolist() == [0, 0, 1, 1, 2, 2, 2, 2, 1, 1, 0, 0]
    assert lanes.zigzag(7, available=even).tolist() == [0, 0, 1, 2, 2, 1, 0]
    assert lanes.zigzag(4, available=even).tolist() == [0, 1, 2, 0]
    assert lanes.zigzag(2, available=even).tolist() == [0, 1]


def test_zigzag_gives_extra_pages_to_the_fullest_lanes() -> None:
    assert lanes.zigzag(1, available=np.array([1, 5, 3])).tolist() == [1]
    assert lanes.zigzag(2, available=np.array([1, 5, 3])).tolist() == [1, 2]
    assert lanes.zigzag(4, available=np.array([1, 5, 3])).tolist() == [0, 1, 2, 1]
    assert lanes.zigzag(8, available=np.array([1, 5, 3])).tolist() == [0, 1, 1, 2, 2, 2, 1, 0]


def test_scattered_is_a_function_of_seed_and_draw() -> None:
    whole = lanes.scattered(1000, ranks=4, seed=7, drawn=0)
    parts = [lanes.scattered(n, ranks=4, seed=7, drawn=d) for n, d in ((1, 0), (499, 1), (500, 500))]
    assert np.array_equal(whole, np.concatenate(parts))
    assert not np.array_equal(whole, lanes.scattered(1000, ranks=4, seed=8, drawn=0))
    share = np.bincount(whole, minlength=4)
    assert share.min() > 180
    assert share.max() < 320
    # Not a rotation in disguise: lanes repeat at once about as often as chance has it.
    assert 150 < int((whole[1:] == whole[:-1]).sum()) < 350


@pytest.mark.parametrize("seed", [-1, 0, 2**70])
def test_scattered_takes_any_seed(seed: int) -> None:
    assert set(lanes.scattered(200, ranks=3, seed=seed, drawn=0).tolist()) == {0, 1, 2}


def test_mix64_is_splitmix64() -> None:
    # First outputs of the published generator for seed 0 (its state advances by the golden ratio).
    golden = 0x9E3779B97F4A7C15
    states = np.array([0, golden, 2 * golden % 2**64], dtype=np.uint64)
    assert [int(v) for v in lanes.mix64(states)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]
