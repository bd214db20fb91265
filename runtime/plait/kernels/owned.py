"""Which rows a rank stores: `plait.layout.pages` as a device function, and beside it in torch."""
# ruff: noqa: N803 (constant arguments of kernels are upper case, as everywhere in Triton)

from __future__ import annotations

import torch
import triton
import triton.language as tl

from plait.layout.pages import slot_owner, slot_physical


@triton.jit  # type: ignore[untyped-decorator]
def owned_row(
    slot: tl.tensor, rank: tl.tensor, ranks: tl.tensor, PAGE: tl.constexpr, DUMMY: tl.constexpr
) -> tl.tuple:
    """Pool row of logical `slot`, and whether to write it: only on its owner, and not for padding (slot < 0).

    DUMMY: the other ranks write it too, to row 0.
    """
    # 32 bits hold every page there can be, and divide four times as fast as 64.
    page = (slot // PAGE).to(tl.int32)
    mine = page % ranks == rank
    # Negative slots divide towards zero here and away from it in Python: their row is never used.
    row = (page // ranks).to(tl.int64) * PAGE + slot % PAGE
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
