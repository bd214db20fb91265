"""Which rows a rank stores, as a device function: what `plait.layout.pages` says, for the kernels."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def owned_row(slot: tl.tensor, RANK: tl.constexpr, RANKS: tl.constexpr, PAGE: tl.constexpr) -> tl.tuple:
    """Pool row of logical `slot` in its owner's pool, and whether that is RANK's pool (never for slot < 0)."""
    page = slot // PAGE
    # Negative slots divide towards zero here and away from it in Python: their row is never used.
    return page // RANKS * PAGE + slot % PAGE, (slot >= 0) & (page % RANKS == RANK)
