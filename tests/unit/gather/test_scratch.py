"""Dense scratch: two slots, a trash page, zeroed once, poison that no dtype reads as a number."""

from __future__ import annotations

import pytest
import torch
from tests.unit.gather.batches import INDEX, MLA_KINDS, PageKind

from plait.gather import Scratch, ScratchShape
from plait.gather.scratch import POISON, SLOTS

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", [*MLA_KINDS, INDEX], ids=lambda kind: kind.name)
def test_slots_have_the_pages_and_a_trash_page(kind: PageKind) -> None:
    scratch = Scratch(ScratchShape(5, kind.shape, kind.dtype), device=CPU)
    assert (scratch.pages, scratch.trash) == (5, 5)
    for slot in range(SLOTS):
        tensor, rows = scratch.tensor(slot), scratch.rows(slot)
        assert tensor.shape == (6 * kind.shape[0], *kind.shape[1:])
        assert tensor.dtype == kind.dtype
        assert rows.shape == (6, kind.nbytes)
        assert rows.data_ptr() == tensor.data_ptr()
        assert not rows.any(), "a slot starts zeroed"
    assert scratch.nbytes == SLOTS * 6 * kind.nbytes
    assert scratch.rows(0).data_ptr() != scratch.rows(1).data_ptr()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.float32])
def test_poison_is_not_a_number_in_any_stored_dtype(dtype: torch.dtype) -> None:
    scratch = Scratch(ScratchShape(2, (4, 8), dtype), device=CPU)
    scratch.poison()
    for slot in range(SLOTS):
        assert (scratch.rows(slot) == POISON).all()
        assert scratch.tensor(slot).float().isnan().all()
