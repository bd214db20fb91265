"""Which rows a rank stores: `plait.layout.pages` as a device function, and beside it in torch."""
# ruff: noqa: N803 (constant arguments of kernels are upper case, as everywhere in Triton)

from __future__ import annotations

import torch
import triton
import triton.language as tl

from plait.layout.pages import slot_owner, slot_physical


@triton.jit  # type: ignore[untyped-decorator]
def owned_row(
    slot: tl.tensor, RANK: tl.constexpr, RANKS: tl.constexpr, PAGE: tl.constexpr, DUMMY: tl.constexpr
) -> tl.tuple:
    """Pool row of logical `slot`, and whether to write it: only on its owner, and not for padding (slot < 0).

    DUMMY: the other ranks write it too, to row 0.
    """
    page = slot // PAGE
    mine = page % RANKS == RANK
    # Negative slots divide towards zero here and away from it in Python: their row is never used.
    row = page // RANKS * PAGE + slot % PAGE
    wanted = slot >= 0
    if DUMMY:
        row = tl.where(mine, row, 0)
    else:
        wanted = wanted & mine
    return row, wanted


def owned_row_reference(
    slots: torch.Tensor, *, rank: int, ranks: int, dummy: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pool rows of the slots that are to be written, int64 [wanted], and which those are, bool [n]."""
    mine = slot_owner(slots, ranks) == rank
    wanted = slots >= 0 if dummy else (slots >= 0) & mine
    rows = torch.where(mine, slot_physical(slots, ranks), 0)
    return rows[wanted].long(), wanted
