"""Negative controls: put in where they were asked for, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.unit.engine.conftest import Place

from plait.contract.setting_kinds import Fault
from plait.engine import faults


def test_no_fault_is_on_by_default(place: Place) -> None:
    place.settings()
    assert not any(faults.is_on(name) for name in faults.KNOWN)


def test_the_fault_that_was_asked_for_is_on(place: Place) -> None:
    place.settings(test_fault=Fault("drop-page"))
    assert [name for name in faults.KNOWN if faults.is_on(name)] == ["drop-page"]


def test_a_fault_from_a_file_follows_the_file(place: Place, tmp_path: Path) -> None:
    path = tmp_path / "fault"
    place.settings(test_fault=Fault(faults.FROM_FILE, str(path)))
    assert not faults.is_on("shift-mla")
    path.write_text("shift-mla\n")
    assert faults.is_on("shift-mla")
    assert not faults.is_on("shift-index")
    path.write_text("")
    assert not faults.is_on("shift-mla")


def test_swapped_owners_exchanges_the_first_two_pages_only_when_it_is_on(place: Place) -> None:
    pages = np.array([5, 6, 7, 8])
    place.settings(test_fault=Fault("drop-page"))
    assert faults.swapped_owners(pages) is pages
    place.settings(test_fault=Fault("swap-owners"))
    assert faults.swapped_owners(pages).tolist() == [6, 5, 7, 8]
    assert faults.swapped_owners(pages[:2]).tolist() == [6, 5]
    assert faults.swapped_owners(pages[:1]).tolist() == [5]
    assert pages.tolist() == [5, 6, 7, 8]


@pytest.mark.parametrize(
    ("rank", "layer", "name", "moved"),
    [(1, 1, "shift-mla", True), (0, 1, "shift-mla", False), (1, 0, "shift-mla", False), (1, 1, "x", False)],
)
def test_rows_move_by_one_token_on_rank_1_in_layer_1(
    place: Place, rank: int, layer: int, name: str, moved: bool
) -> None:
    place.settings(test_fault=Fault(name))
    place.at(rank, 2)
    rows = torch.arange(6).view(3, 2)
    found = faults.shifted_rows("shift-mla", layer, rows)
    assert found.tolist() == ([[4, 5], [0, 1], [2, 3]] if moved else rows.tolist())
