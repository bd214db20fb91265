"""What a batch reads, as data: which pages of which rank go to which page of the dense view.

The dense view holds every request's pages in sequence order, request after request; attention reads it
with slots `(base + position div 64) * 64 + position mod 64`. The plan is built once per batch from page
ids alone (ids of a sequence are no fixed rotation: the radix tree may replace them) and is equal on all
ranks, so that no rank decides alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from plait.contract.layouts import PAGE_SIZE
from plait.gather.runs import PageList, Runs, runs_of
from plait.layout import Int64Array, owner, physical

PADDING = -1
"""In `PartPlan.place`: a received page that pads a rank's block; it is put on the view's trash page."""


class GatherRequest(NamedTuple):
    """One request: cached `prefix` tokens (page-aligned), new `extend` tokens, `pages` np.int64 of both."""

    prefix: int
    extend: int
    pages: Int64Array


@dataclass(frozen=True)
class PartPlan:
    """Pages that are fetched together.

    owner, physical, dense: np.int64 [pages] each, in the order of the dense view: the rank that stores the
    page, the page in that rank's pool, and the page of the dense view that it fills.
    block, send, place: the same pages in blocks of equal size per rank, as collectives move them. block:
    pages that every rank sends (the most that any owns; the rest is padding). send: np.int64 [N, block],
    physical page on its owner (padding: 0, the reserved page). place: np.int64 [N * block], dense page of
    each received one (padding: `PADDING`).
    """

    owner: Int64Array
    physical: Int64Array
    dense: Int64Array
    block: int
    send: Int64Array
    place: Int64Array

    @classmethod
    def of(cls, owners: Int64Array, pages: Int64Array, dense: Int64Array, *, ranks: int) -> PartPlan:
        """The part of these pages: owner, physical page and dense page of each, in dense order."""
        owned = np.bincount(owners, minlength=ranks)
        block = int(owned.max()) if len(owners) else 0
        order = np.argsort(owners, kind="stable")
        column = np.arange(len(owners), dtype=np.int64) - np.repeat(np.cumsum(owned) - owned, owned)
        send = np.zeros((ranks, block), dtype=np.int64)
        place = np.full((ranks, block), PADDING, dtype=np.int64)
        send[owners[order], column] = pages[order]
        place[owners[order], column] = dense[order]
        return cls(owner=owners, physical=pages, dense=dense, block=block, send=send, place=place.reshape(-1))

    @cached_property
    def runs(self) -> Runs:
        """The part in runs, for the copy engine. Raises ValueError if it names a reserved page."""
        return runs_of(PageList(self.owner, self.physical, self.dense), ranks=self.ranks)

    @property
    def pages(self) -> int:
        """Dense pages that the part fills."""
        return len(self.dense)

    @property
    def ranks(self) -> int:
        """N, ranks of the group."""
        return len(self.send)

    def remote_pages(self, rank: int) -> int:
        """Pages of the part that `rank` does not own."""
        mine = self.place.reshape(self.send.shape)[rank]
        return self.pages - int(np.count_nonzero(mine != PADDING))

    def placed(self, trash: int) -> Int64Array:
        """`place` with the padding sent to dense page `trash`."""
        return np.where(self.place == PADDING, trash, self.place)


@dataclass(frozen=True)
class GatherPlan:
    """The dense view of one batch.

    base: np.int64 [batch], first dense page of each request. pages: dense pages in all.
    prefix: stable while the batch runs, so that it can be fetched ahead. chunk: written in each layer.
    """

    base: Int64Array
    pages: int
    prefix: PartPlan
    chunk: PartPlan

    @classmethod
    def from_requests(cls, requests: Sequence[GatherRequest], *, ranks: int, budget: int) -> GatherPlan:
        """The plan of a batch, within `budget` dense pages.

        Raises ValueError if there is no request, if the batch needs more (admission must not have formed
        it), or if a request's prefix is not whole pages or its ids do not match its length.
        """
        if not requests:
            raise ValueError("requests is empty: a batch has at least one request")
        prefix_pages, counts = [], []
        for index, request in enumerate(requests):
            needed = pages_needed(request.prefix, request.extend)
            if request.prefix % PAGE_SIZE:
                raise ValueError(
                    f"requests[{index}].prefix is {request.prefix}: cached prefixes are whole pages of "
                    f"{PAGE_SIZE} tokens"
                )
            if len(request.pages) != needed:
                raise ValueError(
                    f"requests[{index}].pages has {len(request.pages)} ids: prefix {request.prefix} and "
                    f"extend {request.extend} need {needed}"
                )
            prefix_pages.append(request.prefix // PAGE_SIZE)
            counts.append(needed)
        total = sum(counts)
        if total > budget:
            raise ValueError(
                f"the batch needs {total} dense pages, the scratch holds {budget}: it should not have been "
                f"formed (PLAIT_SCRATCH_TOKENS is the budget of the scheduler's admission)"
            )
        count = np.array(counts, dtype=np.int64)
        base = np.cumsum(count) - count
        ids = np.concatenate([request.pages for request in requests])
        inside = np.arange(total, dtype=np.int64) - np.repeat(base, count)
        is_prefix = inside < np.repeat(np.array(prefix_pages, dtype=np.int64), count)
        dense = np.arange(total, dtype=np.int64)
        owners, pages = owner(ids, ranks), physical(ids, ranks)

        def part(chosen: npt.NDArray[np.bool_]) -> PartPlan:
            return PartPlan.of(owners[chosen], pages[chosen], dense[chosen], ranks=ranks)

        return cls(base=base, pages=total, prefix=part(is_prefix), chunk=part(~is_prefix))

    def undivided(self) -> GatherPlan:
        """The same view with an empty prefix part: all pages come with the chunk, in one move per layer.

        Cheaper than two moves where the prefix is so small that fetching it ahead hides nothing.
        """
        parts = (self.prefix, self.chunk)
        dense = np.concatenate([part.dense for part in parts])
        order = np.argsort(dense, kind="stable")
        owners = np.concatenate([part.owner for part in parts])[order]
        pages = np.concatenate([part.physical for part in parts])[order]
        none = np.zeros(0, dtype=np.int64)
        return GatherPlan(
            base=self.base,
            pages=self.pages,
            prefix=PartPlan.of(none, none, none, ranks=self.chunk.ranks),
            chunk=PartPlan.of(owners, pages, dense[order], ranks=self.chunk.ranks),
        )


def pages_needed(prefix: int, extend: int) -> int:
    """Dense pages that a request of `prefix` + `extend` tokens takes."""
    return -(-(prefix + extend) // PAGE_SIZE)
