"""Gather plans against a page-by-page reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.contract.layouts import PAGE_SIZE
from plait.gather import GatherPlan, GatherRequest, PartPlan, pages_needed
from plait.gather.plan import PADDING

RANKS = [1, 2, 3, 4, 8]
LENGTHS = [1, 2, 63, 64, 65, 127, 128, 300]


def request(prefix_pages: int, extend: int, pages: list[int]) -> GatherRequest:
    return GatherRequest(prefix_pages * PAGE_SIZE, extend, np.array(pages, dtype=np.int64))


def placed(part: PartPlan, ranks: int) -> dict[int, tuple[int, int]]:
    """Dense page -> (rank, physical page) of a part, told one block entry at a time."""
    assert part.send.shape == (ranks, part.block)
    assert part.place.shape == (ranks * part.block,)
    assert part.send.dtype == part.place.dtype == np.int64
    found: dict[int, tuple[int, int]] = {}
    for entry, dense in enumerate(part.place.tolist()):
        rank, column = divmod(entry, part.block)
        if dense == PADDING:
            assert part.send[rank, column] == 0, "padding must read the reserved page"
            continue
        assert dense not in found, "a dense page is filled twice"
        found[dense] = (rank, int(part.send[rank, column]))
    return found


def check(plan: GatherPlan, requests: list[GatherRequest], ranks: int) -> None:
    prefix: dict[int, tuple[int, int]] = {}
    chunk: dict[int, tuple[int, int]] = {}
    dense = 0
    for index, one in enumerate(requests):
        assert plan.base[index] == dense
        for position, page in enumerate(one.pages.tolist()):
            part = prefix if position < one.prefix // PAGE_SIZE else chunk
            part[dense] = (page % ranks, page // ranks)
            dense += 1
    assert plan.pages == dense
    for part, expected in ((plan.prefix, prefix), (plan.chunk, chunk)):
        assert placed(part, ranks) == expected
        listed = zip(part.dense.tolist(), part.owner.tolist(), part.physical.tolist(), strict=True)
        assert [(dense, (rank, page)) for dense, rank, page in listed] == sorted(expected.items())
        assert part.pages == len(expected)
        owned = [sum(rank == r for r, _ in expected.values()) for rank in range(ranks)]
        assert part.block == max(owned)
        assert [part.remote_pages(rank) for rank in range(ranks)] == [len(expected) - n for n in owned]
        trashed = part.placed(plan.pages)
        assert (trashed[part.place == PADDING] == plan.pages).all()
        assert (trashed[part.place != PADDING] == part.place[part.place != PADDING]).all()


@st.composite
def batches(draw: st.DrawFn) -> tuple[int, list[GatherRequest]]:
    """Requests over random pages (so owners are random too, some ranks often own nothing); a request may
    share the first pages of another one's prefix."""
    ranks = draw(st.sampled_from(RANKS))
    ids = list(range(ranks, ranks * 40))
    draw(st.randoms(use_true_random=False)).shuffle(ids)
    if draw(st.booleans()):
        kept = draw(st.sets(st.integers(0, ranks - 1), min_size=1))
        ids = [page for page in ids if page % ranks in kept]
    requests: list[GatherRequest] = []
    for _ in range(draw(st.integers(1, 4))):
        extend = draw(st.sampled_from(LENGTHS) | st.integers(1, 400))
        shared: list[int] = []
        if requests and draw(st.booleans()):
            other = requests[0]
            shared = other.pages[: draw(st.integers(0, other.prefix // PAGE_SIZE))].tolist()
        own = draw(st.integers(0, 3))
        new = -(-extend // PAGE_SIZE)
        pages = shared + [ids.pop() for _ in range(min(own + new, len(ids)))]
        if len(pages) < new or not pages:
            break
        requests.append(request(len(pages) - new, extend, pages))
    return ranks, requests or [request(0, 1, [ranks])]


@settings(max_examples=300, deadline=None)
@given(batches())
def test_every_page_goes_from_its_owner_to_its_place_once(case: tuple[int, list[GatherRequest]]) -> None:
    ranks, requests = case
    budget = sum(len(one.pages) for one in requests)
    plan = GatherPlan.from_requests(requests, ranks=ranks, budget=budget)
    check(plan, requests, ranks)
    whole = plan.undivided()
    assert (whole.pages, whole.prefix.pages, whole.chunk.pages) == (plan.pages, 0, plan.pages)
    assert np.array_equal(whole.base, plan.base)
    assert placed(whole.chunk, ranks) == placed(plan.prefix, ranks) | placed(plan.chunk, ranks)
    assert whole.chunk.dense.tolist() == list(range(plan.pages))


@pytest.mark.parametrize(
    "requests",
    [
        pytest.param([request(0, 1, [4])], id="one token"),
        pytest.param([request(0, 64, [7])], id="one page"),
        pytest.param([request(0, 65, [4, 5])], id="fewer pages than ranks"),
        pytest.param([request(2, 1, [4, 5, 6])], id="chunk of one token after a prefix"),
        pytest.param([request(0, 300, [4, 8, 12, 16, 20])], id="one rank owns everything"),
        pytest.param([request(3, 130, [9, 4, 11, 6, 5, 10])], id="partial last page, owners in no order"),
        pytest.param([request(1, 5, [8, 5]), request(1, 64, [8, 6]), request(1, 2, [8, 7])], id="one prefix"),
        pytest.param([request(0, 1, [5]), request(5, 63, [6, 7, 8, 9, 10, 11])], id="long beside short"),
    ],
)
def test_known_batches_on_four_ranks(requests: list[GatherRequest]) -> None:
    check(GatherPlan.from_requests(requests, ranks=4, budget=64), requests, 4)


def test_a_batch_without_prefix_has_an_empty_prefix_part() -> None:
    plan = GatherPlan.from_requests([request(0, 65, [2, 3])], ranks=2, budget=2)
    assert (plan.prefix.block, plan.prefix.pages, plan.prefix.remote_pages(1)) == (0, 0, 0)
    assert plan.prefix.send.shape == (2, 0)


def test_pages_needed_counts_whole_dense_pages() -> None:
    assert [pages_needed(0, n) for n in (1, 64, 65)] == [1, 1, 2]
    assert pages_needed(128, 1) == 3


def test_over_budget_is_refused_by_numbers() -> None:
    requests = [request(1, 64, [2, 3]), request(0, 65, [4, 5])]
    GatherPlan.from_requests(requests, ranks=2, budget=4)
    with pytest.raises(ValueError, match=r"needs 4 dense pages, the scratch holds 3.*PLAIT_SCRATCH_TOKENS"):
        GatherPlan.from_requests(requests, ranks=2, budget=3)


def test_contradictions_name_request_and_field() -> None:
    fine = request(0, 1, [2])
    with pytest.raises(ValueError, match=r"requests\[1\]\.prefix is 31: cached prefixes are whole pages"):
        GatherPlan.from_requests([fine, GatherRequest(31, 1, np.array([3]))], ranks=2, budget=9)
    with pytest.raises(ValueError, match=r"requests\[1\]\.pages has 1 ids: prefix 64 and extend 1 need 2"):
        GatherPlan.from_requests([fine, GatherRequest(64, 1, np.array([3]))], ranks=2, budget=9)
    with pytest.raises(ValueError, match=r"requests is empty"):
        GatherPlan.from_requests([], ranks=2, budget=9)
