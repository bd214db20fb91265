"""Page accounting: what makes up the pool, and every way in which it does not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.contract.layouts import Split
from plait.layout import Geometry, PageAllocator, PageDemand
from plait.pools import Holder, PageAccount, account

GEOMETRY = Geometry(ranks=2, pages=8)  # usable ids 2..9


def pages(*ids: int) -> np.ndarray:
    return np.array(ids, dtype=np.int64)


def check(
    free: set[int], tree: list[np.ndarray], requests: dict[str, np.ndarray] | None = None
) -> PageAccount:
    mask = np.zeros(GEOMETRY.end_page, dtype=np.bool_)
    mask[list(free)] = True
    holders = [Holder(name, ids) for name, ids in (requests or {}).items()]
    return account(GEOMETRY, mask, tree=tree, requests=holders)


def test_free_tree_and_requests_make_up_the_pool() -> None:
    found = check({2, 3, 9}, [pages(4, 5), pages(6)], {"a": pages(4, 5, 7), "b": pages(4, 8)})
    assert found == PageAccount(free=3, tree=3, requests=2, faults=())


def test_an_empty_engine_is_all_free() -> None:
    assert check(set(range(2, 10)), []) == PageAccount(free=8, tree=0, requests=0, faults=())


@pytest.mark.parametrize(
    ("free", "tree", "requests", "fault"),
    [
        pytest.param({2, 3}, [pages(4, 5, 6, 7)], {}, "pages 8, 9 are neither free nor held", id="leak"),
        pytest.param(
            set(range(2, 8)),
            [pages(7, 8), pages(9)],
            {},
            "pages 7 are free and held at once",
            id="free and held by the tree",
        ),
        pytest.param(
            set(range(2, 9)),
            [],
            {"a": pages(8, 9)},
            "pages 8 are free and held",
            id="free and held by a request",
        ),
        pytest.param(
            set(range(2, 8)),
            [],
            {"a": pages(8), "b": pages(8, 9), "c": pages(9)},
            "pages 8, 9 are written by more than one request: a, b, c",
            id="double",
        ),
        pytest.param(
            set(range(2, 8)),
            [pages(8, 9), pages(8)],
            {},
            "pages 8 stand in more than one tree node",
            id="twice in the tree",
        ),
        pytest.param(
            set(range(2, 10)), [pages(1)], {}, "reserved pages 1 are held", id="reserved page in the tree"
        ),
        pytest.param(
            set(range(2, 10)),
            [],
            {"a": pages(0)},
            "reserved pages 0 are held",
            id="reserved page of a request",
        ),
        pytest.param(set(range(1, 10)), [], {}, "reserved pages 1 are free to take", id="reserved page free"),
        pytest.param(
            set(range(2, 10)),
            [pages(10)],
            {"a": pages(-1)},
            "pages -1, 10 are held, but ids run from 0 to 9",
            id="beyond the pool",
        ),
    ],
)
def test_each_fault_is_named_with_its_pages(
    free: set[int], tree: list[np.ndarray], requests: dict[str, np.ndarray], fault: str
) -> None:
    found = check(free, tree, requests)
    assert len(found.faults) == 1, found.faults
    assert fault in found.faults[0]


def test_several_faults_are_all_told() -> None:
    found = check({2}, [pages(3), pages(3)], {"a": pages(4), "b": pages(4)})
    assert len(found.faults) == 3
    assert "neither free nor held" in found.faults[2]


def test_requests_may_share_pages_of_the_tree_only() -> None:
    shared = check(set(range(4, 10)), [pages(2, 3)], {"a": pages(2, 3), "b": pages(2)})
    assert shared.faults == ()
    assert shared.requests == 0


def test_a_mask_of_another_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="free has 3 entries: the pool has ids up to 9"):
        account(GEOMETRY, np.zeros(3, dtype=np.bool_), tree=[], requests=[])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.data(), st.sampled_from(list(Split)))
def test_what_the_allocator_hands_out_is_accounted_for_and_a_lost_page_is_seen(
    counts: list[int], data: st.DataObject, split: Split
) -> None:
    geometry = Geometry(ranks=3, pages=30)
    allocator = PageAllocator(geometry, split=split)
    taken = allocator.take([PageDemand(count=count) for count in counts])
    assert taken is not None
    cut = data.draw(st.integers(0, len(taken)))
    tree, requests = taken[:cut], [Holder(str(i), ids) for i, ids in enumerate(taken[cut:])]
    found = account(geometry, allocator.free_mask(), tree=tree, requests=requests)
    assert found.faults == ()
    assert found.free + found.tree + found.requests == geometry.pages
    assert found.tree == sum(counts[:cut])

    lost = data.draw(st.sampled_from(np.concatenate(taken).tolist()))
    forgetful = [Holder(h.name, h.pages[h.pages != lost]) for h in requests]
    found = account(
        geometry, allocator.free_mask(), tree=[ids[ids != lost] for ids in tree], requests=forgetful
    )
    assert found.faults == (f"pages {lost} are neither free nor held by anyone",)
