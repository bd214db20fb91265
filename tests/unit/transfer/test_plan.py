"""What each rank sends, against the list that was asked for; and what does not fit is said."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.transfer import destination_fault, owned_pages


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([1, 2, 3, 4, 8]),
    st.lists(st.integers(0, 400), max_size=40, unique=True),
    st.integers(0, 50),
    st.booleans(),
)
def test_all_ranks_together_send_every_position_once_from_the_right_page(
    ranks: int, ids: list[int], first: int, sharded: bool
) -> None:
    logical = [ranks + page for page in ids]
    seen: dict[int, int] = {}
    for rank in range(ranks):
        own = owned_pages(
            np.array(logical, dtype=np.int32), rank=rank, ranks=ranks, sharded=sharded, first_position=first
        )
        assert own.pages.dtype == np.int32
        assert own.positions.dtype == np.int64
        assert (np.diff(own.positions) > 0).all()
        for page, position in zip(own.pages.tolist(), own.positions.tolist(), strict=True):
            assert position not in seen
            seen[position] = page * ranks + rank if sharded else page
            assert logical[position - first] % ranks == rank
    assert seen == {first + index: page for index, page in enumerate(logical)}


def test_a_rank_without_pages_sends_an_empty_list_of_the_same_types() -> None:
    own = owned_pages([4, 6, 8], rank=1, ranks=2, sharded=True)
    assert own.pages.tolist() == own.positions.tolist() == []
    assert (own.pages.dtype, own.positions.dtype) == (np.int32, np.int64)


def test_the_two_layouts_send_the_same_positions() -> None:
    logical = [7, 5, 6, 9]
    shared = owned_pages(logical, rank=1, ranks=2, sharded=True, first_position=3)
    replicated = owned_pages(logical, rank=1, ranks=2, sharded=False, first_position=3)
    assert shared.positions.tolist() == replicated.positions.tolist() == [3, 4, 6]
    assert shared.pages.tolist() == [3, 2, 4]
    assert replicated.pages.tolist() == [7, 5, 9]


def test_a_request_that_fits_has_no_fault() -> None:
    positions = np.array([0, 3], dtype=np.int64)
    assert destination_fault(positions, destination_pages=4, source_state=[4], destination_state=[4]) is None


def test_a_chunk_whose_state_travels_later_is_not_compared_yet() -> None:
    positions = np.array([0], dtype=np.int64)
    assert destination_fault(positions, destination_pages=1, source_state=[], destination_state=[9]) is None


def test_a_rank_without_pages_of_its_own_still_compares_the_state() -> None:
    none = np.empty(0, dtype=np.int64)
    assert destination_fault(none, destination_pages=0, source_state=[], destination_state=[]) is None
    fault = destination_fault(none, destination_pages=4, source_state=[4], destination_state=[3])
    assert fault == "prefill has [4] index pages to send, decode has allocated [3]"


@pytest.mark.parametrize(("positions", "pages"), [([0, 4], 4), ([2], 0), ([-1, 1], 4)])
def test_positions_beyond_decodes_list_are_named(positions: list[int], pages: int) -> None:
    fault = destination_fault(
        np.array(positions, dtype=np.int64), destination_pages=pages, source_state=[], destination_state=[]
    )
    assert fault is not None
    assert f"positions {min(positions)}..{max(positions)} do not fit the {pages} pages" in fault


@pytest.mark.parametrize(("source", "destination"), [([4], [3]), ([3], [4]), ([4, 4], [4]), ([4], [])])
def test_index_pages_are_never_cut_off_in_silence(source: list[int], destination: list[int]) -> None:
    fault = destination_fault(
        np.array([0], dtype=np.int64),
        destination_pages=9,
        source_state=source,
        destination_state=destination,
    )
    assert fault is not None
    assert str(source) in fault
    assert str(destination) in fault
