"""Reading the other ranks' memory in place: page ids and rows of what spans all ranks, and the view of it.

All ranks' pools lie side by side, `stride` bytes apart, and `stride` is whole pages: page p of rank r is page
`r * (stride // page bytes) + p` of one tensor, so unmodified attention kernels read all ranks by page tables.
Worth it where few query rows read few of many rows; `plait.gather.policy` decides.

HAZARD: the engine's own reads of index pages (SGLang 0.5.17, GetKAndS) multiply a page's id by its bytes in
int32, which overflows from page 254,200 on: in what spans all ranks that is in the first rank's neighbour.
Index pages must be read by `plait.kernels.read_index` there, or be gathered, as engines do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from plait.contract.layouts import PAGE_SIZE
from plait.gather.peer_exchange import Spans
from plait.gather.plan import GatherPlan
from plait.kernels.pull import rank_pages
from plait.layout import Int64Array, owner, physical, slot_owner, slot_physical
from plait.peer import Barrier

INT32_MAX = 2**31 - 1
"""Attention kernels take rows and pages as int32."""


def peer_pages(pages: Int64Array, *, ranks: int, pages_per_rank: int) -> Int64Array:
    """Logical page ids as pages of what spans all ranks, np.int64 of the same shape; holes (< 0) stay.

    pages_per_rank: `stride // page bytes`. On the device: `plait.kernels.pages.peer_pages`.
    """
    there: Int64Array = owner(pages, ranks) * pages_per_rank + physical(pages, ranks)
    return np.where(pages < 0, pages, there)


def peer_rows(slots: Int64Array, *, ranks: int, pages_per_rank: int) -> Int64Array:
    """Logical slots as rows (tokens) of what spans all ranks; holes (< 0) stay. On the device:
    `plait.kernels.pages.peer_slots`."""
    there: Int64Array = slot_owner(slots, ranks) * (pages_per_rank * PAGE_SIZE) + slot_physical(slots, ranks)
    return np.where(slots < 0, slots, there)


def peer_table(slots: torch.Tensor, *, ranks: int, pages_per_rank: int) -> torch.Tensor:
    """A page table of logical slots as rows of what spans all ranks; same shape, dtype (int32) and device.

    Entries beyond a request's length, which may be anything, become anything: no kernel may take them.
    """
    wide = slots.long()
    there = slot_owner(wide, ranks) * (pages_per_rank * PAGE_SIZE) + slot_physical(wide, ranks)
    return there.to(slots.dtype)


def in_reach(*, stride: int, row_bytes: int, ranks: int) -> bool:
    """Whether every row that spans all ranks has an int32 number. From the layout alone: equal on all.

    row_bytes: what tables count in: a token's row of the MLA pool, a page of the index pool.
    """
    return ranks * (stride // row_bytes) - 1 <= INT32_MAX


class PeerView:
    """One kind (MLA or index) of the current batch, read where it lies.

    `consume(layer)` is the tensor of all ranks' rows, after a barrier: the chunk's rows have been written by
    all ranks. row_shape, dtype: of the pool's own tensor, whose first dimension counts rows (MLA) or pages
    (index). pages_per_rank: from one rank's first page to the next one's, for page tables.
    HAZARD: between the ranks' rows there are holes without memory; only rows that page tables name may be
    touched.

    Raises ValueError if rows of the last rank would be beyond int32.
    """

    def __init__(
        self, spans: Spans, barrier: Barrier, *, row_shape: Sequence[int], dtype: torch.dtype
    ) -> None:
        self.pages_per_rank = spans.stride // spans.page_bytes
        row_bytes = math.prod(row_shape) * dtype.itemsize
        if not in_reach(stride=spans.stride, row_bytes=row_bytes, ranks=spans.ranks):
            rows = spans.ranks * spans.stride // row_bytes
            raise ValueError(
                f"{spans.ranks} ranks, {spans.stride} bytes apart, are {rows} rows of {row_bytes} bytes: "
                "beyond int32, in which attention takes them; gather instead, or make the pools smaller"
            )
        self._barrier = barrier
        self._tensors = [
            rank_pages(span, spans.stride, spans.page_bytes).view(-1).view(dtype).view(-1, *row_shape)
            for span in spans.spanning
        ]
        self._ready = -1
        self._active = False

    def begin(
        self, plan: GatherPlan, *, rank: int, device: torch.device, prefetch: bool | None = None
    ) -> None:
        """Start a batch, whose barrier has been met. Nothing is fetched, so nothing else is needed."""
        del plan, rank, device, prefetch
        self._ready = -1
        self._active = True

    def end(self) -> None:
        """Forget the batch."""
        self._active = False

    @property
    def active(self) -> bool:
        """Whether a batch is being read."""
        return self._active

    def consume(self, layer: int) -> torch.Tensor:
        """All ranks' rows of local layer `layer`. Every rank must call it for every layer, in order."""
        if not self._active:
            raise RuntimeError("the peer view was read outside a context-parallel prefill batch")
        if layer != self._ready:
            self._barrier.meet()
            self._ready = layer
        return self._tensors[layer]
