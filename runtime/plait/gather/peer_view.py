"""Reading the other ranks' memory in place: page ids and rows of what spans all ranks, and the view of it.

All ranks' pools lie side by side, `stride` bytes apart, and `stride` is whole pages: page p of rank r is page
`r * (stride // page bytes) + p` of one tensor, so unmodified attention kernels read all ranks by page tables.
Worth it where few query rows read few of many rows; `plait.gather.policy` decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch

from plait.contract.layouts import PAGE_SIZE
from plait.gather.peer_exchange import Spans
from plait.kernels.pull import rank_pages
from plait.layout import Int64Array, owner, physical, slot_owner, slot_physical
from plait.peer import Barrier

INT32_END = 2**31
"""Attention kernels take rows and pages as int32."""

Ids = TypeVar("Ids", Int64Array, torch.Tensor)


def peer_pages(pages: Ids, *, ranks: int, pages_per_rank: int) -> Ids:
    """Logical page ids as pages of what spans all ranks; negative ids (holes) stay.

    pages: np.int64 array or integer tensor of any shape, which is also that of the result. pages_per_rank:
    `stride // page bytes`. Ids are not checked: they run in every forward (`check_reach` holds for all).
    """
    there = owner(pages, ranks) * pages_per_rank + physical(pages, ranks)
    return _with_holes(pages, there)


def peer_rows(slots: Ids, *, ranks: int, pages_per_rank: int) -> Ids:
    """Logical slots as rows (tokens) of what spans all ranks; negative slots (holes) stay."""
    there = slot_owner(slots, ranks) * (pages_per_rank * PAGE_SIZE) + slot_physical(slots, ranks)
    return _with_holes(slots, there)


def _with_holes(ids: Ids, there: Ids) -> Ids:
    hole = ids < 0
    return there * ~hole + ids * hole


def check_reach(spans: Spans) -> None:
    """ValueError unless every row that spans all ranks has an int32 number, so that no table can overflow."""
    rows = rows_in_reach(stride=spans.stride, page_bytes=spans.page_bytes, ranks=spans.ranks)
    if rows > INT32_END:
        raise ValueError(
            f"{spans.ranks} ranks x {spans.stride} bytes are {rows} rows of {spans.page_bytes // PAGE_SIZE} "
            f"bytes: beyond int32, in which attention takes them; the peer view cannot be used"
        )


def rows_in_reach(*, stride: int, page_bytes: int, ranks: int) -> int:
    """Rows (tokens) from the first rank's first to the end of the last rank's stride."""
    return ranks * (stride // page_bytes) * PAGE_SIZE


class PeerView:
    """One kind (MLA or index) of the current batch, read where it lies.

    `consume(layer)` is the tensor of all ranks' rows, after a barrier: the chunk's rows have been written by
    all ranks. row_shape, dtype: of the pool's own tensor, whose first dimension counts rows (MLA) or pages
    (index). HAZARD: between the ranks' rows there are holes without memory; only rows that page tables name
    may be touched.
    """

    def __init__(
        self, spans: Spans, barrier: Barrier, *, row_shape: Sequence[int], dtype: torch.dtype
    ) -> None:
        check_reach(spans)
        self._barrier = barrier
        self._tensors = [
            rank_pages(span, spans.stride, spans.page_bytes).view(-1).view(dtype).view(-1, *row_shape)
            for span in spans.spanning
        ]
        self._ready = -1

    def begin(self) -> None:
        """Start a batch. The batch's barrier must have been met."""
        self._ready = -1

    def consume(self, layer: int) -> torch.Tensor:
        """All ranks' rows of local layer `layer`. Every rank must call it for every layer, in order."""
        if layer != self._ready:
            self._barrier.meet()
            self._ready = layer
        return self._tensors[layer]
