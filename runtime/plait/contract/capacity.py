"""Capacity arithmetic: pages, tokens and bytes of one rank, and the dense scratch. Pure functions of sizes.

Logical pages are counted without the reserved stripe 0 (page ids N..P+N-1 on N ranks). A rank of the shared
layout stores one physical page per stripe, P/N + 1 in all; a rank of the replicated layout stores every
logical page, P + N in all. Bytes are of tensors over all layers, except where a name says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from plait.contract.layouts import PAGE_SIZE, Layout
from plait.contract.rows import RowBytes
from plait.contract.violation import ContractError, Violation

SCRATCH_SLOTS = 2
"""Dense views kept at once: the layer being computed, and the one being fetched."""
_GRANULE = 2 << 20
"""Bytes of which a GPU's mappable allocations are multiples: one for the pools, one for the barriers."""
_ALIGNMENT = 256
"""Bytes at whose multiples each layer's MLA and index rows begin in it."""


def pool_unit(ranks: int) -> int:
    """Tokens of one stripe: a pool holds whole stripes, so its tokens are a multiple of this."""
    _at_least(1, ranks=ranks)
    return ranks * PAGE_SIZE


def pages_of_pool(tokens: int, *, ranks: int, field: str = "max_total_tokens") -> int:
    """Logical pages of a pool of `tokens`. Raises ContractError naming `field` unless it is whole stripes."""
    unit = pool_unit(ranks)
    if tokens < unit or tokens % unit:
        below = max(tokens // unit, 1) * unit
        reason = f"a pool on {ranks} ranks holds whole stripes of {ranks} pages, so tokens divide by {unit}"
        raise ContractError([Violation(field, tokens, reason, f"{below} or {below + unit}")])
    return tokens // PAGE_SIZE


def physical_pages(pages: int, *, ranks: int, layout: Layout) -> int:
    """Pages that one rank stores for `pages` logical ones, the reserved stripe included."""
    _whole_stripes(pages, ranks)
    if layout is Layout.SHARED:
        return pages // ranks + 1
    return pages + ranks


def pool_bytes(pages: int, *, ranks: int, layers: int, row: int, layout: Layout) -> int:
    """Bytes of one rank's pool for rows of `row` bytes per token and layer."""
    _at_least(1, layers=layers, row=row)
    return physical_pages(pages, ranks=ranks, layout=layout) * PAGE_SIZE * row * layers


def pages_for_bytes(budget: int, *, ranks: int, layers: int, row: int, layout: Layout) -> int:
    """Most logical pages, in whole stripes, whose pool fits `budget` bytes per rank; 0 when not one does."""
    _at_least(1, ranks=ranks, layers=layers, row=row)
    stored = max(budget, 0) // (PAGE_SIZE * row * layers)
    if layout is Layout.SHARED:
        return max(stored - 1, 0) * ranks
    return max(stored // ranks - 1, 0) * ranks


def tokens_for_bytes(budget: int, *, ranks: int, layers: int, row: int, layout: Layout) -> int:
    """Tokens that `budget` bytes of pool per rank hold."""
    return pages_for_bytes(budget, ranks=ranks, layers=layers, row=row, layout=layout) * PAGE_SIZE


class GatherBy(StrEnum):
    """How a rank gets pages of the others, as far as memory is concerned."""

    PEER = "peer"
    """Out of their mapped pools, straight into the dense view."""
    COLLECTIVE = "collective"
    """Packed, sent, received and put in place."""


class Aside(NamedTuple):
    """Bytes of one rank of the shared layout that are not its pool.

    slots: the dense views, each with one page beyond its tokens, where padding lands. exchange: what
    collectives receive, prefix and chunk together one slot at most, and this rank's share of it, packed.
    mapping: what pools in mapped memory lose to whole granules, at most.

    HAZARD: `exchange` counts pages that lie evenly on their owners. A collective moves blocks of equal
    size, so a view whose pages lie on few ranks takes up to N times that, out of the engine's own reserve.
    """

    slots: int
    exchange: int
    mapping: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.slots + self.exchange + self.mapping


_NOTHING = Aside(0, 0, 0)


def set_aside(tokens: int, *, row: int, layers: int, ranks: int, by: GatherBy) -> Aside:
    """What a rank sets aside for dense slots of `tokens`; `row`: bytes of a layer's MLA and index rows."""
    _at_least(0, tokens=tokens)
    _at_least(1, row=row, layers=layers, ranks=ranks)
    slot = (_whole_pages(tokens) + PAGE_SIZE) * row
    if by is GatherBy.PEER:
        return Aside(SCRATCH_SLOTS * slot, 0, 2 * _GRANULE + 2 * layers * _ALIGNMENT)
    return Aside(SCRATCH_SLOTS * slot, slot + -(-slot // ranks), 0)


def scratch_for(*, context_length: int, chunk: int) -> int:
    """Planned tokens of one scratch slot: the longest request, and one chunk of others beside it."""
    _at_least(1, context_length=context_length, chunk=chunk)
    return _whole_pages(context_length) + _whole_pages(chunk)


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """What one rank's memory holds. Bytes are per rank; `longest` is the longest request that is admitted.

    scratch_tokens: of one dense slot; no batch is formed that needs more, in both layouts.
    """

    layout: Layout
    ranks: int
    pages: int
    tokens: int
    tokens_replicated: int
    mla_bytes: int
    index_bytes: int
    scratch_tokens: int
    aside: Aside
    longest: int

    @property
    def pool_bytes(self) -> int:
        """MLA and index pools together."""
        return self.mla_bytes + self.index_bytes

    @property
    def total_bytes(self) -> int:
        """Pools and what is set aside, together."""
        return self.pool_bytes + self.aside.total


def plan_memory(
    budget: int,
    *,
    layout: Layout,
    ranks: int,
    layers: int,
    rows: RowBytes,
    context_length: int,
    chunk: int,
    by: GatherBy,
    scratch_tokens: int = 0,
    max_tokens: int | None = None,
) -> MemoryPlan:
    """Share `budget` bytes per rank between the pools and what the shared layout sets aside.

    The scratch comes first (`scratch_tokens` per slot, 0: planned), the pools take the rest in whole
    stripes, at most `max_tokens`. The replicated layout reads its own pool and sets nothing aside.
    `tokens_replicated` is what the replicated layout holds in the pool bytes of this plan.
    Raises ContractError when a request of `context_length` does not fit the scratch, or no stripe is left.
    """
    _at_least(1, ranks=ranks, layers=layers, context_length=context_length, chunk=chunk)
    slot = scratch_tokens or scratch_for(context_length=context_length, chunk=chunk)
    if slot % PAGE_SIZE or slot < _whole_pages(context_length):
        reason = f"one scratch slot must hold the longest request ({context_length} tokens) in whole pages"
        fix = f"at least {_whole_pages(context_length)}, or a smaller context length"
        raise ContractError([Violation("PLAIT_SCRATCH_TOKENS", slot, reason, fix)])
    aside = _NOTHING
    if layout is Layout.SHARED:
        aside = set_aside(slot, row=rows.total, layers=layers, ranks=ranks, by=by)
    pages = pages_for_bytes(budget - aside.total, ranks=ranks, layers=layers, row=rows.total, layout=layout)
    if max_tokens is not None:
        pages = min(pages, max(max_tokens, 0) // pool_unit(ranks) * ranks)
    if pages < ranks:
        stripe = pool_bytes(ranks, ranks=ranks, layers=layers, row=rows.total, layout=layout)
        beside = f"the scratch ({aside.total} bytes) and " if aside.total else ""
        reason = f"does not hold {beside}a smallest pool ({stripe} bytes) per rank"
        fix = "more memory for the cache, a shorter context length, or fewer scratch tokens"
        raise ContractError([Violation("memory budget", budget, reason, fix)])

    def pool(row: int) -> int:
        return pool_bytes(pages, ranks=ranks, layers=layers, row=row, layout=layout)

    replicated = tokens_for_bytes(
        pool(rows.total), ranks=ranks, layers=layers, row=rows.total, layout=Layout.REPLICATED
    )
    tokens = pages * PAGE_SIZE
    return MemoryPlan(
        layout=layout,
        ranks=ranks,
        pages=pages,
        tokens=tokens,
        tokens_replicated=replicated,
        mla_bytes=pool(rows.mla),
        index_bytes=pool(rows.index),
        scratch_tokens=slot,
        aside=aside,
        longest=min(context_length, tokens, slot),
    )


def stock_tokens(budget: int, *, layers: int, row: int) -> int:
    """Tokens that one rank of a stock group holds in `budget` bytes: all pages, no stripes, one pad page."""
    return tokens_for_bytes(budget, ranks=1, layers=layers, row=row, layout=Layout.REPLICATED)


def capacity_ratio(
    budget: int, *, ranks: int, layers: int, row: int, scratch_tokens: int, by: GatherBy
) -> float:
    """Tokens of a shared group over N times those of a stock one, at `budget` bytes per rank for both.

    The shared group pays for what it sets aside out of them, and stock has no such thing to pay for: below 1,
    by that share. 0 where the budget holds no shared pool. Raises ContractError where it holds no stock one.
    """
    stock = stock_tokens(budget, layers=layers, row=row)
    if not stock:
        reason, fix = "does not hold one page beside the pad", f"at least {2 * PAGE_SIZE * layers * row}"
        raise ContractError([Violation("memory budget", budget, reason, fix)])
    left = budget - set_aside(scratch_tokens, row=row, layers=layers, ranks=ranks, by=by).total
    return tokens_for_bytes(left, ranks=ranks, layers=layers, row=row, layout=Layout.SHARED) / (ranks * stock)


def _whole_pages(tokens: int) -> int:
    return -(-tokens // PAGE_SIZE) * PAGE_SIZE


def _whole_stripes(pages: int, ranks: int) -> None:
    _at_least(1, ranks=ranks)
    if pages < ranks or pages % ranks:
        below = max(pages // ranks, 1) * ranks
        reason = f"a pool on {ranks} ranks holds whole stripes of {ranks} pages"
        raise ContractError([Violation("pages", pages, reason, f"{below} or {below + ranks}")])


def _at_least(least: int, **sizes: int) -> None:
    bad = [
        Violation(name, value, f"must be a whole number of at least {least}", f"{least} or more")
        for name, value in sizes.items()
        if isinstance(value, bool) or not isinstance(value, int) or value < least
    ]
    if bad:
        raise ContractError(bad)
