"""Parts read out of the other ranks' memory, one-sided: no rank sends, so no order of launches is shared.

What replaces the collectives' order is barriers, on the stream that computes, in the same order on all ranks:

- One at the start of each batch, before its first read and its first write. Before it, every rank has
  finished all reads of its last batch (each was waited for on that stream): no page is overwritten while a
  slow rank reads it. After it, all writes of earlier batches are there: prefixes may be read at any time.
- One per layer and kind between the writes of the chunk's rows and the reads of them.

`PeerExchange` fetches prefixes (they need no barrier of their own), `PeerChunkExchange` chunks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from plait.gather.copy_engine import Move, Mover, PageTensors, Pull, lanes_of
from plait.gather.exchange import LANDED, Fetch, PartIndex, Pending
from plait.gather.runs import RunLimits, divide
from plait.gather.upload import uploaded
from plait.gather.view import GatherStats
from plait.peer import Barrier, PeerMemory


class Spans:
    """All ranks' memory of each layer's pool, found by this rank's own pool.

    segments: of one kind, a name per layer. page_bytes: of that kind; `memory.stride` is a multiple of it
    (ValueError if not), so that a page of any rank is a page of what spans them all.
    """

    def __init__(self, memory: PeerMemory, segments: Sequence[str], *, page_bytes: int) -> None:
        if memory.stride % page_bytes:
            raise ValueError(
                f"the ranks' memory lies {memory.stride} bytes apart, which is no multiple of the page's "
                f"{page_bytes}: it was opened without this page in unit_bytes"
            )
        self.rank, self.ranks, self.stride = memory.rank, memory.ranks, memory.stride
        self.device = memory.device
        self.page_bytes = page_bytes
        self.own = [memory.own(name).view(-1, page_bytes) for name in segments]
        self.spanning = [memory.spanning(name) for name in segments]
        self._by_address: Mapping[int, torch.Tensor] = {
            own.data_ptr(): span for own, span in zip(self.own, self.spanning, strict=True)
        }

    def of(self, source: torch.Tensor) -> torch.Tensor:
        """uint8 [bytes], what spans all ranks' pools of the layer whose own pool is `source`.

        Raises KeyError if `source` is no pool of this kind.
        """
        return self._by_address[source.data_ptr()]


class PeerExchange:
    """Prefixes: runs by the copy engines, fragments by the kernel, all beside the stream that computes.

    limits: what makes a run. per_owner: copy lanes per owner; `mover` has `ranks * per_owner` of them.
    """

    def __init__(
        self, spans: Spans, mover: Mover, *, limits: RunLimits, stats: GatherStats, per_owner: int = 1
    ) -> None:
        if mover.lanes != spans.ranks * per_owner:
            raise ValueError(f"the mover has {mover.lanes} lanes for {spans.ranks} ranks x {per_owner}")
        self._spans, self._mover, self._stats = spans, mover, stats
        self._per_owner = per_owner
        self.limits = limits

    def prepare(self, part: PartIndex) -> Fetch:
        spans, stats = self._spans, self._stats
        plan = divide(part.plan.runs, page_bytes=spans.page_bytes, limits=self.limits)
        stats.runs += len(plan.runs.length)
        stats.run_pages += plan.runs.pages
        stats.fragment_pages += len(plan.fragments.place)
        lanes = lanes_of(
            plan.runs,
            page_bytes=spans.page_bytes,
            stride=spans.stride,
            rank=spans.rank,
            ranks=spans.ranks,
            per_owner=self._per_owner,
        )
        listed = len(plan.fragments.place) > 0
        fragments = PageTensors(*uploaded(*plan.fragments, device=part.device)) if listed else None
        return _Prefix(spans, self._mover, Move(spans.page_bytes, spans.stride, lanes, fragments))


class _Prefix:
    def __init__(self, spans: Spans, mover: Mover, move: Move) -> None:
        self._spans, self._mover, self._move = spans, mover, move

    def launch(self, source: torch.Tensor, target: torch.Tensor) -> Pending:
        return self._mover.land(self._move, self._spans.of(source), target)


class PeerChunkExchange:
    """Chunks: a barrier, then one kernel that pulls all pages by list, on the current stream.

    The barrier is met by every launch of every rank, also by one with no pages to read or to offer.
    """

    def __init__(self, spans: Spans, barrier: Barrier, *, pull: Pull) -> None:
        self._spans, self._barrier, self._pull = spans, barrier, pull

    def prepare(self, part: PartIndex) -> Fetch:
        plan = part.plan
        # Each rank begins at another page, and so at another owner where owners take turns.
        columns = (np.roll(column, -part.rank) for column in (plan.owner, plan.physical, plan.dense))
        pages = PageTensors(*uploaded(*columns, device=part.device))
        return _Chunk(self._spans, self._barrier, self._pull, pages)


class _Chunk:
    def __init__(self, spans: Spans, barrier: Barrier, pull: Pull, pages: PageTensors) -> None:
        self._spans, self._barrier, self._pull, self._pages = spans, barrier, pull, pages

    def launch(self, source: torch.Tensor, target: torch.Tensor) -> Pending:
        spans = self._spans
        self._barrier.meet()
        self._pull(spans.of(source), spans.stride, spans.page_bytes, *self._pages, target)
        return LANDED
