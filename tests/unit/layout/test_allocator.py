"""The page allocator: a model of sets beside it, lockstep, lane preferences, runs, and loud errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.contract.layouts import Split
from plait.layout.allocator import PageAllocator, PageDemand
from plait.layout.pages import Geometry
from plait.layout.runs import mean_run_length

INTERLEAVE, ZIGZAG = Split.PAGE_INTERLEAVE, Split.PAGE_ZIGZAG


def allocator(ranks: int = 4, pages: int = 64, split: Split = INTERLEAVE, **kwargs: int) -> PageAllocator:
    return PageAllocator(Geometry(ranks=ranks, pages=pages), split=split, **kwargs)


def take(pool: PageAllocator, *demands: PageDemand) -> list[list[int]]:
    taken = pool.take(demands)
    assert taken is not None
    return [pages.tolist() for pages in taken]


def leave_free(pool: PageAllocator, per_lane: list[int]) -> None:
    """Use everything but the highest `per_lane` physical pages of each lane."""
    ranks = pool.geometry.ranks
    (pages,) = pool.take([PageDemand(pool.available)]) or [None]
    assert pages is not None
    for lane, count in enumerate(per_lane):
        of_lane = np.sort(pages[pages % ranks == lane])
        pool.free(of_lane[len(of_lane) - count :])


@settings(max_examples=60, deadline=None)
@given(
    ranks=st.integers(1, 5),
    per_rank=st.integers(1, 12),
    split=st.sampled_from(Split),
    seed=st.sampled_from([None, 3]),
    data=st.data(),
)
def test_against_a_model_and_in_lockstep(
    ranks: int, per_rank: int, split: Split, seed: int | None, data: st.DataObject
) -> None:
    geometry = Geometry(ranks=ranks, pages=ranks * per_rank)
    one = PageAllocator(geometry, split=split, random_owners=seed)
    two = PageAllocator(geometry, split=split, random_owners=seed)
    free = set(range(geometry.first_page, geometry.end_page))
    sequences: list[list[int]] = []
    for _ in range(data.draw(st.integers(1, 12))):
        if data.draw(st.booleans()) or not sequences:
            demands, growing = [], []
            for _ in range(data.draw(st.integers(1, 3))):
                count = data.draw(st.integers(0, geometry.pages))
                growth = data.draw(st.sampled_from([None, 0, 5]))
                index = data.draw(st.integers(-1, len(sequences) - 1))
                sequence = sequences[index] if index >= 0 and index not in growing else []
                growing.append(index if sequence else -1)
                if sequence:
                    tail = np.array(sequence) if data.draw(st.booleans()) else None
                    demands.append(PageDemand(count, sequence[-1], len(sequence), growth, tail))
                else:
                    demands.append(PageDemand(count, growth=growth))
            total = sum(demand.count for demand in demands)
            taken, other = one.take(demands), two.take(demands)
            if total > len(free):
                # All or nothing.
                assert taken is None
                assert other is None
            else:
                # Never a failure while pages are free anywhere.
                assert taken is not None
                assert other is not None
                assert [p.tolist() for p in taken] == [p.tolist() for p in other]
                for demand, index, pages in zip(demands, growing, taken, strict=True):
                    assert (pages.dtype, pages.shape) == (np.int64, (demand.count,))
                    given_pages = set(pages.tolist())
                    assert len(given_pages) == demand.count
                    assert given_pages <= free
                    free -= given_pages
                    if index >= 0:
                        sequences[index] += pages.tolist()
                    elif demand.count:
                        sequences.append(pages.tolist())
        else:
            gone = sequences.pop(data.draw(st.integers(0, len(sequences) - 1)))
            # The ranks may order a set of frees differently; that is no divergence.
            one.free(np.array(gone))
            two.free(np.array(gone[::-1]))
            free |= set(gone)
        assert one.available == len(free)
        assert np.flatnonzero(one.free_mask()).tolist() == sorted(free)
        lanes = [sum(page % ranks == lane for page in free) for lane in range(ranks)]
        assert one.available_per_lane.tolist() == lanes
        assert one.fingerprint() == two.fingerprint()


def test_page_ids_of_a_fresh_pool() -> None:
    pool = allocator(ranks=4, pages=8)
    (pages,) = take(pool, PageDemand(8))
    assert pages == [4, 5, 6, 7, 8, 9, 10, 11]
    assert (pool.available, pool.off_lane) == (0, 0)


def test_interleave_continues_and_starts_new_sequences_on_the_fullest_lane() -> None:
    pool = allocator(ranks=4, pages=64)
    first, second = take(pool, PageDemand(6), PageDemand(3))
    assert [page % 4 for page in first] == [0, 1, 2, 3, 0, 1]
    assert [page % 4 for page in second] == [2, 3, 0]  # lanes 2 and 3 have most left, the lower one wins
    (more,) = take(pool, PageDemand(3, last_page=first[-1], first_index=6))
    assert [page % 4 for page in more] == [2, 3, 0]
    assert pool.off_lane == 0


def test_zigzag_prefers_segment_lanes() -> None:
    pool = allocator(ranks=2, pages=64, split=ZIGZAG)
    (pages,) = take(pool, PageDemand(8))
    assert [page % 2 for page in pages] == [0, 0, 1, 1, 1, 1, 0, 0]
    # One-page demands do not pile up on rank 0.
    singles = [take(pool, PageDemand(1))[0][0] % 2 for _ in range(6)]
    assert singles == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize("split", list(Split))
@pytest.mark.parametrize("seed", [None, 11])
def test_skewed_lanes_never_fail_and_are_counted(split: Split, seed: int | None) -> None:
    pool = PageAllocator(Geometry(ranks=4, pages=64), split=split, random_owners=seed)
    leave_free(pool, [0, 10, 1, 2])
    before = pool.off_lane
    assert pool.available_per_lane.tolist() == [0, 10, 1, 2]
    (pages,) = take(pool, PageDemand(13))
    assert sorted(np.bincount(np.array(pages) % 4, minlength=4).tolist()) == [0, 1, 2, 10]
    assert pool.off_lane > before
    assert pool.available == 0
    assert pool.take([PageDemand(1)]) is None


def test_empty_lane_is_replaced_by_the_fullest() -> None:
    pool = allocator(ranks=4, pages=64)
    leave_free(pool, [0, 3, 9, 3])
    before = pool.off_lane
    (pages,) = take(pool, PageDemand(4))  # prefers 2, 3, 0, 1
    assert [page % 4 for page in pages] == [2, 3, 2, 1]
    assert pool.off_lane == before + 1


def test_refused_batch_changes_nothing() -> None:
    pool = allocator(pages=16)
    print_before, mask = pool.fingerprint(), pool.free_mask()
    assert pool.take([PageDemand(10), PageDemand(7)]) is None
    assert pool.fingerprint() == print_before
    assert np.array_equal(pool.free_mask(), mask)
    assert take(pool, PageDemand(10), PageDemand(6)) is not None


def test_a_chunked_long_sequence_keeps_one_run_per_lane() -> None:
    """Chunk after chunk, with short finished sequences arriving in between."""
    pool = allocator(ranks=4, pages=4096)
    sequence = np.empty(0, dtype=np.int64)
    for chunk in range(8):
        last = int(sequence[-1]) if len(sequence) else None
        demand = PageDemand(32, last, len(sequence), growth=32 * (7 - chunk), tail=sequence)
        taken = pool.take([demand, *[PageDemand(n, growth=0) for n in (1, 3, 2)]])
        assert taken is not None
        sequence = np.concatenate([sequence, taken[0]])
    assert mean_run_length(sequence, 4) == 64.0


def test_without_a_tail_only_the_last_pages_lane_goes_on() -> None:
    pool = allocator(ranks=2, pages=64)
    (pages,) = take(pool, PageDemand(4, growth=8))
    (other,) = take(pool, PageDemand(2, last_page=pages[-1], first_index=4))
    assert other[1] == pages[3] + 2
    (again,) = take(pool, PageDemand(2, last_page=other[1], first_index=6, tail=np.array([*pages, *other])))
    assert [again[0] - other[0], again[1] - other[1]] == [2, 2]


def test_fragmented_lanes_give_as_few_runs_as_they_can() -> None:
    pool = allocator(ranks=1, pages=64)
    take(pool, PageDemand(64))
    pool.free(np.array([3, *range(10, 20), *range(30, 36), 50]))
    (pages,) = take(pool, PageDemand(15))
    assert pages == [*range(10, 20), *range(30, 35)]
    assert mean_run_length(np.array(pages), 1) == 7.5


def test_random_owners_are_uneven_but_equal_on_all_ranks() -> None:
    pools = [allocator(ranks=4, pages=400, random_owners=5) for _ in range(4)]
    answers = [take(pool, PageDemand(30), PageDemand(70)) for pool in pools]
    assert all(answer == answers[0] for answer in answers)
    lanes = [page % 4 for page in answers[0][0] + answers[0][1]]
    assert set(lanes) == {0, 1, 2, 3}
    assert lanes != [(lanes[0] + i) % 4 for i in range(100)]
    assert answers[0] != take(allocator(ranks=4, pages=400, random_owners=6), PageDemand(30), PageDemand(70))
    # Draws go on: the same demand again lands differently.
    again = take(pools[0], PageDemand(30))[0]
    assert [page % 4 for page in again] != lanes[:30]


@pytest.mark.parametrize(
    ("pages", "words"),
    [
        ([8, 9], ["8, 9", "free already"]),
        ([4, 5, 5, 4], ["4, 5", "more than once"]),
        ([4, 4, 5], ["pages 4 more than once"]),
        ([0, 4], ["reserved pages 0"]),
        ([4, 20], ["20", "out of range", "4 to 19"]),
        ([-1], ["-1", "out of range"]),
    ],
)
def test_free_refuses_and_changes_nothing(pages: list[int], words: list[str]) -> None:
    pool = allocator(ranks=4, pages=16)
    assert take(pool, PageDemand(4)) == [[4, 5, 6, 7]]
    state = (pool.fingerprint(), pool.available, pool.available_per_lane.tolist(), pool.free_mask().tolist())
    with pytest.raises(ValueError, match=r"^pages to free holds") as error:
        pool.free(np.array(pages))
    assert all(word in str(error.value) for word in words)
    now = (pool.fingerprint(), pool.available, pool.available_per_lane.tolist(), pool.free_mask().tolist())
    assert now == state
    pool.free(np.array([4, 5, 6, 7]))
    assert pool.available == 16


def test_free_takes_no_page_quietly() -> None:
    pool = allocator()
    pool.free(np.empty(0, dtype=np.int64))
    assert pool.available == 64


@pytest.mark.parametrize(
    ("demand", "words"),
    [
        (PageDemand(-1), r"requests\[1\]\.count is -1"),
        (PageDemand(1, growth=-1), r"requests\[1\]\.growth is -1"),
        (PageDemand(1, first_index=3), r"requests\[1\]\.last_page is None with first_index 3"),
        (PageDemand(1, tail=np.array([4])), r"requests\[1\]\.last_page is None"),
        (PageDemand(1, last_page=4), r"requests\[1\]\.first_index is 0 with last_page 4"),
        (PageDemand(1, last_page=3, first_index=1), r"requests\[1\]\.last_page is 3: usable ids run from 4"),
        (PageDemand(1, last_page=68, first_index=1), r"requests\[1\]\.last_page is 68"),
        (PageDemand(1, last_page=60, first_index=1), r"last_page is 60, a free page"),
        (PageDemand(1, 4, 1, tail=np.array([4, 5])), r"tail ends with 5: it must end with last_page, 4"),
        (PageDemand(1, 4, 1, tail=np.array([], dtype=int)), r"tail ends with empty"),
        (PageDemand(1, 4, 2, tail=np.array([60, 4])), r"tail holds free pages 60"),
        (PageDemand(1, 4, 2, tail=np.array([1, 4])), r"tail holds reserved pages 1"),
    ],
)
def test_take_refuses_contradictions_and_changes_nothing(demand: PageDemand, words: str) -> None:
    pool = allocator()
    take(pool, PageDemand(4))
    before = pool.fingerprint()
    with pytest.raises(ValueError, match=words):
        pool.take([PageDemand(2), demand])
    assert (pool.fingerprint(), pool.available) == (before, 60)


def test_unknown_split_is_refused() -> None:
    with pytest.raises(ValueError, match="token-round-robin"):
        PageAllocator(Geometry(2, 4), split="token-round-robin")  # type: ignore[arg-type]


def test_snapshot_and_restore() -> None:
    pool = allocator(random_owners=1)
    first = take(pool, PageDemand(9))[0]
    saved = pool.snapshot()
    before = pool.fingerprint()
    answer = take(pool, PageDemand(20))
    pool.free(np.array(first))
    assert pool.fingerprint() != before
    pool.restore(saved)
    assert (pool.fingerprint(), pool.available) == (before, 55)
    assert take(pool, PageDemand(20)) == answer
    with pytest.raises(ValueError, match=r"snapshot\.geometry"):
        allocator(pages=128).restore(saved)


def test_clear_is_a_fresh_pool() -> None:
    pool, fresh = allocator(random_owners=1), allocator(random_owners=1)
    take(pool, PageDemand(9), PageDemand(30))
    pool.clear()
    assert (pool.available, pool.fingerprint()) == (64, fresh.fingerprint())
    assert take(pool, PageDemand(40)) == take(fresh, PageDemand(40))


def test_off_lane_counter_never_falls() -> None:
    pool = allocator(ranks=2, pages=8)
    saved = pool.snapshot()
    leave_free(pool, [0, 3])
    take(pool, PageDemand(3))
    seen = pool.off_lane
    assert seen == 1
    pool.restore(saved)
    pool.clear()
    assert pool.off_lane == seen


def test_fingerprint_sees_who_got_which_page() -> None:
    one, two = allocator(), allocator()
    take(one, PageDemand(1), PageDemand(2))
    take(two, PageDemand(2), PageDemand(1))
    assert np.array_equal(one.free_mask(), two.free_mask())
    assert one.fingerprint() != two.fingerprint()


def test_fingerprint_sees_a_missing_free_and_its_repair() -> None:
    one, two = allocator(), allocator()
    pages = np.array(take(one, PageDemand(5))[0])
    take(two, PageDemand(5))
    one.free(pages[:2])
    assert one.fingerprint() != two.fingerprint()
    two.free(pages[1:2])
    two.free(pages[:1])
    assert one.fingerprint() == two.fingerprint()


def test_every_page_comes_back_to_use() -> None:
    """Many rounds of uneven traffic: nothing leaks, and a full pool can always be taken again."""
    rng = np.random.default_rng(0)
    pool = allocator(ranks=3, pages=300)
    held: list[np.ndarray] = []
    for _ in range(400):
        counts = rng.integers(0, 25, size=2).tolist()
        taken = pool.take([PageDemand(count, growth=int(rng.integers(0, 2))) for count in counts])
        if taken is None:
            assert sum(counts) > pool.available
            for _ in range(min(len(held), 8)):
                pool.free(held.pop(int(rng.integers(len(held)))))
        else:
            held += taken
    pool.free(np.concatenate(held))
    assert pool.available == 300
    assert sorted(take(pool, PageDemand(300))[0]) == list(range(3, 303))
