"""Which way a batch's pages come: decided once per batch, from what all ranks know alike. Pure.

HAZARD: a decision that differs between ranks is a hang (barriers and collectives are counted). So nothing
enters that a rank sees alone: no time, no free memory, no share of its own; only the batch's metadata and a
cost table that all ranks have got from rank 0.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from plait.contract.layouts import PAGE_SIZE
from plait.gather.costs import CostTable
from plait.gather.plan import GatherPlan
from plait.gather.runs import Runs, divide

KINDS = 2
"""MLA and index: each has its own launches and barriers in a layer."""


class Path(StrEnum):
    """How pages of other ranks are read."""

    COPY = "copy"
    """Into the dense view: runs by the copy engines, fragments by the pull kernel."""
    PULL = "pull"
    """Into the dense view by the pull kernel alone."""
    COLLECTIVE = "collective"
    """Into the dense view by all-gathers: where ranks cannot map each other's memory."""
    DIRECT = "direct"
    """MLA rows not at all: attention reads them where they are. Index pages are pulled at once: every query
    row scores all of their keys, so reading them in place would save nothing."""


class RowShape(NamedTuple):
    """Bytes of one token's rows, and how many of them a query row reads (the indexer's top-k)."""

    mla_bytes: int
    index_bytes: int
    top_k: int

    @property
    def bytes(self) -> int:
        """Of both rows."""
        return self.mla_bytes + self.index_bytes


class BatchShape(NamedTuple):
    """A batch, as far as it decides the way. Everything is equal on all ranks.

    rows: most query rows of any rank. tokens: of the longest request, prefix and chunk. prefix_bytes,
    chunk_bytes: of one layer, MLA and index together, that a rank gets from others on average. runs: copies
    per layer that the prefix makes; run_bytes: the bytes of `prefix_bytes` in them.
    """

    ranks: int
    rows: int
    tokens: int
    prefix_pages: int
    prefix_bytes: float
    chunk_bytes: float
    runs: int
    run_bytes: float
    row: RowShape

    @classmethod
    def of(cls, plan: GatherPlan, *, rows: int, tokens: int, row: RowShape, costs: CostTable) -> BatchShape:
        """The shape of a planned batch."""
        ranks = plan.chunk.ranks
        kinds = [
            _copied(plan.prefix.runs, costs, PAGE_SIZE * width) for width in (row.mla_bytes, row.index_bytes)
        ]
        away = (ranks - 1) / ranks
        page = PAGE_SIZE * row.bytes
        return cls(
            ranks=ranks,
            rows=rows,
            tokens=tokens,
            prefix_pages=plan.prefix.pages,
            prefix_bytes=plan.prefix.pages * page * away,
            chunk_bytes=plan.chunk.pages * page * away,
            runs=sum(count for count, _ in kinds),
            run_bytes=sum(nbytes for _, nbytes in kinds) * away,
            row=row,
        )


def _copied(runs: Runs, costs: CostTable, page_bytes: int) -> tuple[int, int]:
    """Runs that are copied in pages of `page_bytes`, and their bytes."""
    chosen = divide(runs, page_bytes=page_bytes, limits=costs.run_limits()).runs
    return len(chosen.length), chosen.pages * page_bytes


class Decision(NamedTuple):
    """prefix, chunk: the way of each part. prefetch: whether the prefix is fetched a layer ahead; PULL
    without it means that prefix and chunk come in one pull. cost_us: what a layer is expected to lose."""

    prefix: Path
    chunk: Path
    prefetch: bool
    cost_us: float


def choose(batch: BatchShape, costs: CostTable, *, peers: bool, direct: bool, prefetch: bool) -> Decision:
    """The way that costs least.

    peers: the ranks map each other's memory (all or none). direct: attention can read it in place. prefetch:
    it is not switched off. Of equal costs the earlier wins: pull, copy, direct.
    """
    options = peer_options(batch, costs, direct=direct, prefetch=prefetch) if peers else []
    if not peers:
        options = collective_options(batch, costs, prefetch=prefetch)
    return min(options, key=lambda option: option.cost_us)


def peer_options(batch: BatchShape, costs: CostTable, *, direct: bool, prefetch: bool) -> list[Decision]:
    """Every way through mapped memory, with what a layer loses by it. Barriers are in all of them."""
    window = costs.layer_us(batch.rows)
    chunk = KINDS * costs.barrier_us + costs.pull_us(KINDS, batch.chunk_bytes)
    together = chunk + costs.pull_on_us(batch.prefix_bytes)
    options = [Decision(Path.PULL, Path.PULL, False, together)]
    if batch.prefix_pages:
        pulled = costs.pull_us(KINDS, batch.prefix_bytes)
        rest = batch.prefix_bytes - batch.run_bytes
        copied = costs.copy_us(KINDS if batch.runs else 0, runs=batch.runs, nbytes=batch.run_bytes)
        # Fragments are pulled while runs are copied, over the same links: their times add up.
        fragments = costs.pull_us(KINDS, rest) if rest > 0 else 0.0
        if prefetch:
            lost = _lost(pulled, costs.pull_share, window)
            options.append(Decision(Path.PULL, Path.PULL, True, chunk + lost))
            spent = copied + fragments
            share = (costs.copy_share * copied + costs.pull_share * fragments) / spent
            lost = _lost(spent, share, window)
            options.append(Decision(Path.COPY, Path.PULL, True, chunk + lost))
        else:
            options.append(Decision(Path.COPY, Path.PULL, False, chunk + copied + fragments))
    if direct:
        # Every query row reads the rows that were chosen for it.
        row, away = batch.row, (batch.ranks - 1) / batch.ranks
        read = batch.rows * min(row.top_k, batch.tokens) * row.mla_bytes * away
        index = (batch.prefix_bytes + batch.chunk_bytes) * row.index_bytes / row.bytes
        cost = KINDS * costs.barrier_us + costs.direct_us(read) + costs.pull_us(1, index)
        options.append(Decision(Path.DIRECT, Path.DIRECT, False, cost))
    return options


def collective_options(batch: BatchShape, costs: CostTable, *, prefetch: bool) -> list[Decision]:
    """The ways through collectives: the prefix ahead, or with the chunk at once."""
    chunk = costs.collective_us(KINDS, batch.chunk_bytes)
    both = costs.collective_us(KINDS, batch.chunk_bytes + batch.prefix_bytes)
    options = [Decision(Path.COLLECTIVE, Path.COLLECTIVE, False, both)]
    if batch.prefix_pages and prefetch:
        spent = costs.collective_us(KINDS, batch.prefix_bytes)
        lost = _lost(spent, costs.collective_share, costs.layer_us(batch.rows))
        options.append(Decision(Path.COLLECTIVE, Path.COLLECTIVE, True, chunk + lost))
    return options


def _lost(spent: float, share: float, window: float) -> float:
    """What a layer loses by a fetch of `spent` us beside `window` us of compute: `share` of the time that
    both run, and all of the time that the fetch takes longer."""
    return share * min(spent, window) + max(0.0, spent - window)
