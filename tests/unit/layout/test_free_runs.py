"""Runs of one lane: right pages under any sequence of takes and frees, and the three placement rules."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.layout.free_runs import FreeRuns


def lane(pattern: str) -> tuple[np.ndarray, FreeRuns]:
    """A lane from a picture: '.' free, '#' used; page 0 is the first character."""
    free = np.array([mark == "." for mark in pattern])
    return free, FreeRuns(free)


def picture(free: np.ndarray) -> str:
    return "".join("." if bit else "#" for bit in free)


def take(runs: FreeRuns, count: int, after: int | None = None, growth: int | None = None) -> list[int]:
    return runs.take(count, after=after, growth=growth).tolist()


def test_table() -> None:
    _, runs = lane("#..##...#.")
    starts, lengths = runs.table()
    assert starts.tolist() == [1, 5, 9]
    assert lengths.tolist() == [2, 3, 1]
    _, runs = lane("##")
    assert runs.table()[0].tolist() == []


def test_goes_on_after_its_last_page() -> None:
    free, runs = lane("##....#....")
    assert take(runs, 2, after=1, growth=0) == [2, 3]
    assert picture(free) == "####..#...."
    # The rest of the run is too short: what is missing comes from elsewhere.
    assert take(runs, 3, after=3, growth=None) == [4, 5, 7]


def test_last_page_of_the_lane_has_no_next() -> None:
    _, runs = lane("#..##")
    assert take(runs, 1, after=4) == [1]


def test_used_neighbour_is_no_continuation() -> None:
    _, runs = lane("###..")
    assert take(runs, 1, after=1) == [3]


def test_best_fit_takes_the_smallest_run_that_holds_it() -> None:
    _, runs = lane("#.....#..#...#")
    assert take(runs, 2) == [7, 8]
    assert take(runs, 2) == [10, 11]
    assert take(runs, 2) == [1, 2]


def test_growth_looks_for_room_to_grow() -> None:
    _, runs = lane("#..#......#...")
    assert take(runs, 2, growth=4) == [4, 5]
    assert take(runs, 4, after=5, growth=0) == [6, 7, 8, 9]


def test_growth_that_fits_nowhere_takes_the_largest_run() -> None:
    _, runs = lane("#..#....#...")
    assert take(runs, 2, growth=90) == [4, 5]


def test_a_finished_sequence_leaves_room_after_a_growing_one() -> None:
    free, runs = lane("#.........")
    assert take(runs, 2, growth=4) == [1, 2]
    assert take(runs, 2, growth=0) == [8, 9]
    assert take(runs, 4, after=2, growth=0) == [3, 4, 5, 6]
    assert picture(free) == "#######.##"


def test_splits_over_the_largest_runs_when_none_is_enough() -> None:
    free, runs = lane("#..#....#...#.#")
    # 4 + 3 pages from the two largest runs in page order, the last one from the smallest that fits.
    assert take(runs, 8) == [4, 5, 6, 7, 9, 10, 11, 13]
    assert picture(free) == "#..############"
    assert take(runs, 2) == [1, 2]


@settings(deadline=None)
@given(
    size=st.integers(2, 60),
    data=st.data(),
)
def test_never_gives_a_used_page_and_always_what_is_free(size: int, data: st.DataObject) -> None:
    free = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    runs = FreeRuns(free)
    for _ in range(data.draw(st.integers(1, 8))):
        before = free.copy()
        if free.any() and data.draw(st.booleans()):
            count = data.draw(st.integers(1, int(before.sum())))
            used = np.flatnonzero(~before).tolist()
            after = data.draw(st.sampled_from([None, *used]))
            growth = data.draw(st.sampled_from([None, 0, 1, 7]))
            pages = runs.take(count, after=after, growth=growth)
            assert pages.dtype == np.int64
            assert len(set(pages.tolist())) == count
            assert before[pages].all()
            assert not free[pages].any()
            assert int(free.sum()) == int(before.sum()) - count
            if after is not None and after + 1 < size and before[after + 1]:
                assert pages[0] == after + 1
        else:
            used_now = np.flatnonzero(~free).tolist()
            back = data.draw(st.lists(st.sampled_from(used_now), unique=True)) if used_now else []
            free[back] = True
            runs.forget()
