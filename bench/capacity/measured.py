"""A measured start beside the plan: two engines, one of each layout, with the same model, GPUs and memory
fraction.

What they say of themselves at `GET /plait/status` tells their tensors. Layers and row bytes follow from
these; what the replicated one holds tells the memory that both had.
"""

from __future__ import annotations

from typing import NamedTuple

from plait.contract.capacity import (
    SCRATCH_SLOTS,
    GatherBy,
    physical_pages,
    pool_bytes,
    set_aside,
    tokens_for_bytes,
)
from plait.contract.layouts import PAGE_SIZE, Layout
from plait.contract.status import EngineStatus


class MismatchError(ValueError):
    """Two states that do not belong together, or tensors that are not those of the plan."""


class Measured(NamedTuple):
    """tokens: of the group. planned_tokens: what the plan gives the shared one of the memory that the
    replicated one used; the engines' free memory differs a little from start to start, and so do these.
    ratio: shared_tokens / (ranks · replicated_tokens), as measured.
    """

    ranks: int
    layers: int
    row_bytes: int
    dense_tokens: int
    gather: str
    shared_tokens: int
    replicated_tokens: int
    planned_tokens: int
    ratio: float


def measured(shared: EngineStatus, replicated: EngineStatus) -> Measured:
    """Both starts as one figure. Raises MismatchError where they are no pair, or not as planned."""
    for status, layout in ((shared, Layout.SHARED), (replicated, Layout.REPLICATED)):
        if status.layout != layout.value:
            raise MismatchError(f"the layout is {status.layout}, and {layout} is wanted")
        if len(status.ranks) != status.cp:
            raise MismatchError(f"{layout}: {len(status.ranks)} of {status.cp} ranks have reported")
    if shared.cp != replicated.cp or shared.wire_hash != replicated.wire_hash:
        raise MismatchError("the two engines do not run the same model on as many ranks")
    ranks, slot, tokens = shared.cp, shared.capacity.scratch_tokens, shared.capacity.tokens
    held = {(r.bytes.mla + r.bytes.index, r.bytes.scratch) for r in shared.ranks}
    if len(held) != 1:
        raise MismatchError(f"shared: the ranks hold different bytes: {sorted(held)}")
    pool, scratch = held.pop()
    row = _whole(scratch, SCRATCH_SLOTS * (slot + PAGE_SIZE), "bytes of scratch", "rows of its slots")
    stored = physical_pages(tokens // PAGE_SIZE, ranks=ranks, layout=Layout.SHARED)
    layers = _whole(pool, stored * PAGE_SIZE * row, "bytes of pool", f"layers of {stored} pages")
    by = GatherBy.PEER if all(r.peers.state == "mapped" for r in shared.ranks) else GatherBy.COLLECTIVE
    pages = replicated.capacity.tokens // PAGE_SIZE
    memory = pool_bytes(pages, ranks=ranks, layers=layers, row=row, layout=Layout.REPLICATED)
    aside = set_aside(slot, row=row, layers=layers, ranks=ranks, by=by).total
    planned = tokens_for_bytes(memory - aside, ranks=ranks, layers=layers, row=row, layout=Layout.SHARED)
    return Measured(
        ranks=ranks,
        layers=layers,
        row_bytes=row,
        dense_tokens=slot,
        gather=by.value,
        shared_tokens=tokens,
        replicated_tokens=replicated.capacity.tokens,
        planned_tokens=planned,
        ratio=round(tokens / (ranks * replicated.capacity.tokens), 4),
    )


def _whole(bytes_: int, unit: int, what: str, of: str) -> int:
    count, rest = divmod(bytes_, unit)
    if rest or not count:
        raise MismatchError(f"shared: {bytes_} {what} are no whole {of}")
    return count
