"""Logical <-> physical: inverses on every kind of integer, and errors that name the field and the fix."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.contract.layouts import PAGE_SIZE
from plait.layout.pages import (
    Geometry,
    listed,
    logical,
    owner,
    physical,
    slot_logical,
    slot_owner,
    slot_physical,
)

ranks_of = st.integers(1, 17)
ids = st.integers(0, 2**40)


@settings(deadline=None)
@given(page=ids, ranks=ranks_of)
def test_page_round_trip(page: int, ranks: int) -> None:
    assert 0 <= owner(page, ranks) < ranks
    assert logical(owner(page, ranks), physical(page, ranks), ranks) == page


@settings(deadline=None)
@given(row=ids, ranks=ranks_of, data=st.data())
def test_physical_round_trip(row: int, ranks: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, ranks - 1))
    page = logical(rank, row, ranks)
    assert (owner(page, ranks), physical(page, ranks)) == (rank, row)
    slot = slot_logical(rank, row, ranks)
    assert (slot_owner(slot, ranks), slot_physical(slot, ranks)) == (rank, row)


@settings(deadline=None)
@given(slot=ids, ranks=ranks_of)
def test_slot_follows_its_page(slot: int, ranks: int) -> None:
    page = slot // PAGE_SIZE
    assert slot_owner(slot, ranks) == owner(page, ranks)
    assert slot_physical(slot, ranks) == physical(page, ranks) * PAGE_SIZE + slot % PAGE_SIZE
    assert slot_logical(slot_owner(slot, ranks), slot_physical(slot, ranks), ranks) == slot


def test_known_values() -> None:
    # 4 ranks: page 4 is the first usable page, physical page 1 of rank 0.
    assert (owner(4, 4), physical(4, 4)) == (0, 1)
    assert (owner(11, 4), physical(11, 4)) == (3, 2)
    assert (slot_owner(11 * 64 + 5, 4), slot_physical(11 * 64 + 5, 4)) == (3, 2 * 64 + 5)
    assert slot_physical(0, 4) == 0


@settings(deadline=None)
@given(slots=st.lists(st.integers(0, 2**31), min_size=1, max_size=50), ranks=ranks_of)
def test_numpy_equals_ints(slots: list[int], ranks: int) -> None:
    array = np.array(slots, dtype=np.int64)
    for function in (owner, physical, slot_owner, slot_physical):
        result = function(array, ranks)
        assert result.dtype == np.int64
        assert result.tolist() == [function(slot, ranks) for slot in slots]
    assert logical(owner(array, ranks), physical(array, ranks), ranks).tolist() == slots
    assert slot_logical(slot_owner(array, ranks), slot_physical(array, ranks), ranks).tolist() == slots


def test_torch_equals_ints() -> None:
    torch = pytest.importorskip("torch")
    slots = list(range(0, 4000, 37))
    for dtype in (torch.int64, torch.int32):
        tensor = torch.tensor(slots, dtype=dtype).reshape(-1, 1)
        for ranks in (1, 2, 3, 8):
            for function in (owner, physical, slot_owner, slot_physical):
                result = function(tensor, ranks)
                assert (result.dtype, result.shape) == (dtype, tensor.shape)
                assert result.flatten().tolist() == [function(slot, ranks) for slot in slots]
            back = slot_logical(slot_owner(tensor, ranks), slot_physical(tensor, ranks), ranks)
            assert torch.equal(back, tensor)


def test_geometry_sizes() -> None:
    geometry = Geometry(ranks=4, pages=40)
    assert (geometry.first_page, geometry.end_page) == (4, 44)
    assert (geometry.pages_per_rank, geometry.physical_pages, geometry.tokens) == (10, 11, 2560)
    usable = np.arange(geometry.first_page, geometry.end_page)
    # Every rank stores the same number of them, in physical pages 1..pages_per_rank.
    assert np.bincount(owner(usable, 4)).tolist() == [10] * 4
    assert (physical(usable, 4).min(), physical(usable, 4).max()) == (1, 10)


@pytest.mark.parametrize(
    ("ranks", "pages", "words"),
    [
        (0, 8, ["Geometry.ranks is 0", "at least 1"]),
        (-2, 8, ["Geometry.ranks is -2"]),
        (4, 10, ["Geometry.pages is 10", "multiple of 4", "give 8"]),
        (4, 3, ["Geometry.pages is 3", "give 4"]),
        (4, 0, ["Geometry.pages is 0", "give 4"]),
        (2.0, 8, ["Geometry.ranks is 2.0", "int"]),
        (True, 8, ["Geometry.ranks is True", "int"]),
    ],
)
def test_geometry_refuses(ranks: int, pages: int, words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"^Geometry\.") as error:
        Geometry(ranks=ranks, pages=pages)
    assert all(word in str(error.value) for word in words)


def test_check_names_field_and_pages() -> None:
    geometry = Geometry(ranks=4, pages=8)
    assert geometry.check([4, 11], field="x").dtype == np.int64
    assert geometry.check([], field="x").shape == (0,)
    assert geometry.check(np.array([5], dtype=np.int32), field="x").dtype == np.int64
    with pytest.raises(ValueError, match=r"x holds reserved pages 0, 3.*stripe 0"):
        geometry.check([5, 0, 3], field="x")
    with pytest.raises(ValueError, match=r"x holds pages -1, 12 that are out of range.*4 to 11"):
        geometry.check([5, -1, 12], field="x")
    with pytest.raises(ValueError, match=r"x has shape \(1, 1\)"):
        geometry.check([[4]], field="x")
    with pytest.raises(ValueError, match=r"x has dtype float64"):
        geometry.check([4.0], field="x")


def test_listed_is_bounded() -> None:
    assert listed(np.arange(3)) == "0, 1, 2"
    assert listed(np.arange(1000), limit=2) == "0, 1, ... (1000 in all)"


def test_layout_imports_no_torch() -> None:
    code = "import sys, plait.layout; sys.exit('torch' in sys.modules or 'sglang' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
