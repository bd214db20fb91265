"""Split plans against a token-by-token reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.contract.layouts import PAGE_SIZE, Split
from plait.layout.allocator import PageAllocator, PageDemand
from plait.layout.pages import Geometry
from plait.layout.split import SplitPlan, SplitRequest

LENGTHS = [1, 2, 5, 63, 64, 65, 127, 128, 129, 300, 1900]


def pages_for(total: int) -> int:
    return -(-total // PAGE_SIZE)


def check(plan: SplitPlan, requests: list[SplitRequest], ranks: int) -> None:
    """Everything the plan says, told again one token at a time."""
    shares: list[list[int]] = [[] for _ in range(ranks)]
    lengths = [[0] * len(requests) for _ in range(ranks)]
    rows: list[tuple[int, int]] = []
    last_owner = []
    for index, request in enumerate(requests):
        rank = -1
        for position in range(request.prefix, request.prefix + request.extend):
            rank = int(request.pages[position // PAGE_SIZE]) % ranks
            rows.append((rank, len(shares[rank])))
            shares[rank].append(len(rows) - 1)
            lengths[rank][index] += 1
        last_owner.append(rank)
    assert [index.tolist() for index in plan.token_index] == shares
    assert all(index.dtype == np.int64 for index in plan.token_index)
    assert plan.request_lengths.dtype == np.int64
    assert plan.request_lengths.tolist() == lengths
    assert plan.lengths.tolist() == [len(share) for share in shares]
    assert (plan.ranks, plan.tokens) == (ranks, len(rows))
    assert plan.max_length == max(map(len, shares))
    assert plan.imbalance == pytest.approx(plan.max_length / (len(rows) / ranks))
    assert plan.last_owner.tolist() == last_owner
    for padded in (plan.max_length, plan.max_length + 3):
        gather = plan.gather_index(padded)
        assert gather.dtype == np.int64
        assert gather.tolist() == [rank * padded + row for rank, row in rows]
        # What the index is for: the ranks' padded rows, put back in the batch's order.
        stacked = np.full((ranks, padded), -1)
        for rank, share in enumerate(plan.token_index):
            stacked[rank, : len(share)] = share
        assert np.array_equal(stacked.reshape(-1)[gather], np.arange(len(rows)))


@settings(max_examples=60, deadline=None)
@given(ranks=st.integers(1, 5), data=st.data())
def test_random_owners_equal_the_reference(ranks: int, data: st.DataObject) -> None:
    shapes = data.draw(
        st.lists(
            st.tuples(st.integers(0, 6), st.one_of(st.sampled_from(LENGTHS[:-1]), st.integers(1, 400))),
            min_size=1,
            max_size=4,
        )
    )
    needed = sum(prefix + pages_for(extend) for prefix, extend in shapes)
    ids = iter(data.draw(st.permutations(range(ranks, ranks + needed))))
    requests = [
        SplitRequest(
            prefix * PAGE_SIZE,
            extend,
            np.array([next(ids) for _ in range(prefix + pages_for(extend))], dtype=np.int64),
        )
        for prefix, extend in shapes
    ]
    check(SplitPlan.from_pages(requests, ranks=ranks), requests, ranks)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("split", list(Split))
@pytest.mark.parametrize("seed", [None, 2])
def test_what_the_allocator_gives(ranks: int, split: Split, seed: int | None) -> None:
    """Each length alone, all together, and each as the next chunk of a sequence."""
    pool = PageAllocator(Geometry(ranks, 256 * ranks), split=split, random_owners=seed)
    first = pool.take([PageDemand(pages_for(length)) for length in LENGTHS])
    assert first is not None
    requests = [SplitRequest(0, length, pages) for length, pages in zip(LENGTHS, first, strict=True)]
    for request in requests:
        check(SplitPlan.from_pages([request], ranks=ranks), [request], ranks)
    check(SplitPlan.from_pages(requests, ranks=ranks), requests, ranks)
    longer = pool.take([PageDemand(pages_for(128 + 65) - 2, int(first[7][1]), 2)])
    assert longer is not None
    chunk = [SplitRequest(128, 65, np.concatenate([first[7], longer[0]])), requests[0]]
    check(SplitPlan.from_pages(chunk, ranks=ranks), chunk, ranks)


def test_a_long_request_is_even_on_both_splits() -> None:
    for split in Split:
        pool = PageAllocator(Geometry(4, 512), split=split)
        taken = pool.take([PageDemand(128)])
        assert taken is not None
        plan = SplitPlan.from_pages([SplitRequest(0, 128 * 64, taken[0])], ranks=4)
        assert plan.imbalance == 1.0
        assert plan.lengths.tolist() == [2048] * 4


def test_one_token_on_eight_ranks() -> None:
    plan = SplitPlan.from_pages([SplitRequest(0, 1, np.array([13]))], ranks=8)
    assert plan.lengths.tolist() == [0, 0, 0, 0, 0, 1, 0, 0]
    assert plan.token_index[5].tolist() == [0]
    assert plan.token_index[0].tolist() == []
    assert plan.last_owner.tolist() == [5]
    assert plan.imbalance == 8.0
    assert plan.gather_index(1).tolist() == [5]


def test_int32_pages_are_fine() -> None:
    plan = SplitPlan.from_pages([SplitRequest(0, 65, np.array([3, 2], dtype=np.int32))], ranks=2)
    assert plan.lengths.tolist() == [1, 64]
    assert plan.token_index[1].dtype == np.int64


def request(prefix: int, extend: int, pages: list[int]) -> SplitRequest:
    return SplitRequest(prefix, extend, np.array(pages))


@pytest.mark.parametrize(
    ("requests", "words"),
    [
        ([], "requests is empty"),
        ([request(65, 1, [4, 5])], r"requests\[0\]\.prefix is 65.*multiple of 64.*round.*down to 64"),
        ([request(-64, 65, [4])], r"requests\[0\]\.prefix is -64"),
        ([request(64, 0, [4])], r"requests\[0\]\.extend is 0"),
        ([request(0, 1, [4]), request(0, 65, [5])], r"requests\[1\]\.pages.*need exactly 2"),
        ([request(64, 64, [4, 5, 6])], r"requests\[0\]\.pages has shape \(3,\).*exactly 2"),
        ([request(0, 1, [1])], r"requests\[0\]\.pages holds 1: ids below 2 are the reserved"),
        ([request(64, 1, [0, 4])], r"requests\[0\]\.pages holds 0"),
        ([request(0, 1, [-3])], r"requests\[0\]\.pages holds -3"),
        ([SplitRequest(0, 1, np.array([4.0]))], r"requests\[0\]\.pages has dtype float64"),
        ([request(0, 65, [4, 4])], r"write pages 4 more than once"),
        ([request(0, 1, [4]), request(64, 1, [5, 4])], r"write pages 4 more than once"),
    ],
)
def test_refuses(requests: list[SplitRequest], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SplitPlan.from_pages(requests, ranks=2)


def test_refuses_no_ranks() -> None:
    with pytest.raises(ValueError, match="ranks is 0"):
        SplitPlan.from_pages([request(0, 1, [4])], ranks=0)


def test_shared_prefix_pages_are_allowed() -> None:
    both = [request(64, 1, [4, 5]), request(64, 1, [4, 6])]
    assert SplitPlan.from_pages(both, ranks=2).lengths.tolist() == [1, 1]


def test_padding_below_the_longest_share_is_refused() -> None:
    plan = SplitPlan.from_pages([request(0, 65, [4, 5])], ranks=2)
    with pytest.raises(ValueError, match=r"padded is 63.*64 rows"):
        plan.gather_index(63)
