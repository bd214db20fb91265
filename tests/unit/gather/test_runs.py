"""Copy plans: every page is moved once, by the copy engine or by the kernel, and runs are worth it."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.gather.batches import random_batch

from plait.contract.layouts import PAGE_SIZE
from plait.gather import GatherPlan, GatherRequest, PartPlan
from plait.gather.runs import MOST_PITCH, CopyPlan, RunLimits, Runs, divide

EVERYTHING = RunLimits(least_bytes=0, most_runs=10**6)
PAGE = 656 * PAGE_SIZE


def moved(plan: CopyPlan) -> dict[int, tuple[int, int]]:
    """Dense page -> (owner, physical page), told one page at a time; a page moved twice is a fault."""
    found: dict[int, tuple[int, int]] = {}
    for owner, physical, place, count, stride in zip(*(c.tolist() for c in plan.runs), strict=True):
        for k in range(count):
            assert place + k * stride not in found
            found[place + k * stride] = (owner, physical + k)
    for owner, physical, place in zip(*(c.tolist() for c in plan.fragments), strict=True):
        assert place not in found
        found[place] = (owner, physical)
    return found


def expected(part: PartPlan) -> dict[int, tuple[int, int]]:
    columns = zip(part.dense.tolist(), part.owner.tolist(), part.physical.tolist(), strict=True)
    return {dense: (owner, physical) for dense, owner, physical in columns}


def sequential(ranks: int, pages: int, *, first: int | None = None) -> np.ndarray:
    return np.arange(pages, dtype=np.int64) + (ranks if first is None else first)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_random_parts_are_moved_page_by_page_as_planned(ranks: int) -> None:
    rng = np.random.default_rng(ranks)
    several = 0
    for _ in range(150):
        batch = random_batch(rng, ranks=ranks, stripes=6)
        if rng.random() < 0.5:  # long regular prefixes between the random ones
            long = sequential(ranks, int(rng.integers(1, 40)), first=ranks * 7 + int(rng.integers(0, 9)))
            batch.requests.insert(
                int(rng.integers(0, len(batch.requests) + 1)),
                GatherRequest((len(long) - 1) * PAGE_SIZE, 5, long),
            )
        plan = GatherPlan.from_requests(batch.requests, ranks=ranks, budget=1000)
        limits = RunLimits(int(rng.choice([0, 2 * PAGE, 5 * PAGE])), int(rng.choice([0, 1, 3, 1000])))
        for part in (plan.prefix, plan.chunk):
            runs = part.runs
            assert runs.pages == part.pages
            copied = divide(runs, page_bytes=PAGE, limits=limits)
            assert moved(copied) == expected(part)
            assert len(copied.runs.length) <= limits.most_runs
            assert (copied.runs.length * PAGE >= limits.least_bytes).all()
            assert (copied.runs.stride > 0).all()
            several += len(copied.runs.length) > 0
    assert several > 50


def test_a_fresh_sequence_is_one_run_per_owner() -> None:
    plan = GatherPlan.from_requests(
        [GatherRequest(128 * PAGE_SIZE, 1, sequential(4, 129))], ranks=4, budget=200
    )
    runs = plan.prefix.runs
    assert runs.owner.tolist() == [0, 1, 2, 3]
    assert runs.place.tolist() == [0, 1, 2, 3]
    assert runs.length.tolist() == [32] * 4
    assert runs.stride.tolist() == [4] * 4


def test_a_run_ends_where_another_part_stands_between() -> None:
    # Two prefixes that are one stretch of the pool, with a chunk of 3 pages between them in the dense view.
    first, second = sequential(2, 8), sequential(2, 8, first=10)
    requests = [
        GatherRequest(8 * PAGE_SIZE, 130, np.concatenate([first, [40, 41, 42]])),
        GatherRequest(8 * PAGE_SIZE, 1, np.concatenate([second, [43]])),
    ]
    plan = GatherPlan.from_requests(requests, ranks=2, budget=30)
    runs = plan.prefix.runs
    assert runs.owner.tolist() == [0, 0, 1, 1]
    assert runs.place.tolist() == [0, 11, 1, 12]
    assert runs.length.tolist() == [4] * 4
    assert moved(divide(runs, page_bytes=PAGE, limits=EVERYTHING)) == expected(plan.prefix)


def test_the_longest_runs_are_chosen_and_the_rest_is_pulled() -> None:
    runs = Runs(
        owner=np.array([0, 0, 1, 1]),
        physical=np.array([1, 9, 1, 30]),
        place=np.array([0, 20, 30, 60]),
        length=np.array([2, 9, 9, 12]),
        stride=np.array([1, 1, 1, 1]),
    )
    plan = divide(runs, page_bytes=100, limits=RunLimits(least_bytes=900, most_runs=2))
    assert plan.runs.place.tolist() == [20, 60], "of two equal runs the first"
    assert len(plan.fragments.place) == 11
    assert plan.fragments.place.tolist() == sorted(plan.fragments.place.tolist())
    none = divide(runs, page_bytes=100, limits=RunLimits(least_bytes=0, most_runs=0))
    assert (len(none.runs.length), len(none.fragments.place)) == (0, 32)


def test_a_pitch_that_cuda_refuses_is_left_to_the_kernel() -> None:
    stride = MOST_PITCH // PAGE + 1
    runs = Runs(*(np.array([value]) for value in (0, 1, 0, 5, stride)))
    assert len(divide(runs, page_bytes=PAGE, limits=EVERYTHING).fragments.place) == 5
    assert len(divide(runs, page_bytes=PAGE // 2, limits=EVERYTHING).fragments.place) == 0


def test_a_reserved_page_is_refused() -> None:
    plan = GatherPlan.from_requests([GatherRequest(0, 65, np.array([2, 1]))], ranks=2, budget=3)
    with pytest.raises(ValueError, match="reserved stripe"):
        _ = plan.chunk.runs


def test_an_empty_part_has_no_runs() -> None:
    plan = GatherPlan.from_requests([GatherRequest(0, 1, np.array([4]))], ranks=2, budget=3)
    copied = divide(plan.prefix.runs, page_bytes=PAGE, limits=EVERYTHING)
    assert (copied.runs.pages, len(copied.fragments.place)) == (0, 0)
