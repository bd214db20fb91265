"""The dense view of one kind through the layers of a batch: consume this layer, fetch the next one ahead.

Each layer L: its rows of the chunk are written to their owners, then `consume(L)` exchanges the chunk part
and waits for the prefix part, and launches the prefix part of layer L + 1 into the other slot. If nothing
was launched for L (prefetch off), `consume` launches it itself: correctness never depends on the prefetch.

HAZARD: the slot that layer L + 1 lands in was read by layer L - 1. `consume(L)` runs after the readers of
L - 1 were launched on the same stream, and a launch is ordered after that stream's work, so it lands behind
them. A reader of a dense tensor on another stream must have been joined before the next layer is consumed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from plait.gather.exchange import Exchange, Fetch, PartIndex, Pending
from plait.gather.plan import GatherPlan, PartPlan
from plait.gather.scratch import SLOTS, Scratch
from plait.gather.trace import Trace


@dataclass
class GatherStats:
    """Counters of one rank, since start. Written by the forward thread only; readers may be a batch behind.

    bytes: came from other ranks. seconds: host time in launches and waits.
    hit / late / fallback: prefix parts that had arrived when asked for, had to be waited for, or had not
    been launched.
    runs, run_pages, fragment_pages: of the prefixes of all batches (counted once a batch, not in each
    layer): copies that the copy engine was given, the pages in them, and the pages left to the kernel.
    """

    bytes: int = 0
    seconds: float = 0.0
    hit: int = 0
    late: int = 0
    fallback: int = 0
    runs: int = 0
    run_pages: int = 0
    fragment_pages: int = 0

    @property
    def mean_run_length(self) -> float:
        """Pages per copy; 0.0 before the first."""
        return self.run_pages / self.runs if self.runs else 0.0

    @property
    def fragment_share(self) -> float:
        """Share of the prefix pages that runs were too short for; 0.0 before the first page."""
        pages = self.run_pages + self.fragment_pages
        return self.fragment_pages / pages if pages else 0.0


class DenseView:
    """One kind (MLA or index) of the dense view of the current batch.

    sources: per local layer, this rank's own pool as uint8 [physical pages, page bytes].
    ahead: exchange for prefix parts; now: exchange for chunk parts. Collectives of both must not share a
    process group: a chunk part must not queue behind a prefix part that is fetched ahead.
    prefetch: whether the prefix is fetched ahead, unless `begin` says otherwise for its batch.
    check: called with the layer when its dense tensor is complete. trace: ranges and notes for a profiler.
    """

    def __init__(
        self,
        sources: Sequence[torch.Tensor],
        scratch: Scratch,
        *,
        ahead: Exchange,
        now: Exchange,
        prefetch: bool,
        stats: GatherStats,
        check: Callable[[int], None] | None = None,
        trace: Trace | None = None,
    ) -> None:
        self._sources = list(sources)
        self._scratch = scratch
        self._page_bytes = scratch.rows(0).shape[1]
        self._ahead, self._now = ahead, now
        self._prefetch = self._prefetch_now = prefetch
        self._stats = stats
        self._check = check
        self._prefix: Fetch | None = None
        self._chunk: Fetch | None = None
        self._prefix_bytes = self._chunk_bytes = 0
        self._pending: dict[int, Pending] = {}
        self._ready = -1
        if trace is not None:  # bound here, so that without a trace a layer pays nothing for it
            self._exchange = trace.around("consume", self._exchange)  # type: ignore[method-assign, assignment]
            self._launch = trace.around("prefix", self._launch)  # type: ignore[method-assign, assignment]

    def begin(
        self, plan: GatherPlan, *, rank: int, device: torch.device, prefetch: bool | None = None
    ) -> None:
        """Start a batch, and fetch the prefix of layer 0 ahead.

        prefetch: for this batch only; None: as the view was made. Equal on all ranks.
        HAZARD: the last batch must have run through all its layers, or `end` been called: a collective left
        in the air would be matched with this batch's.
        """
        if self._pending:
            raise RuntimeError("a batch began while a part of the last one is still under way")

        def index(part: PartPlan) -> PartIndex:
            return PartIndex(part, rank, self._scratch.trash, device)

        self._prefix = self._ahead.prepare(index(plan.prefix)) if plan.prefix.pages else None
        self._chunk = self._now.prepare(index(plan.chunk))
        self._prefix_bytes = plan.prefix.remote_pages(rank) * self._page_bytes
        self._chunk_bytes = plan.chunk.remote_pages(rank) * self._page_bytes
        self._ready = -1
        self._prefetch_now = self._prefetch if prefetch is None else prefetch
        if self._prefetch_now:
            self._launch(0)

    def end(self) -> None:
        """Finish what is under way and forget the batch."""
        for pending in self._pending.values():
            pending.wait()
        self._pending.clear()
        self._prefix = self._chunk = None
        self._ready = -1

    @property
    def active(self) -> bool:
        """Whether a batch is being read."""
        return self._chunk is not None

    def consume(self, layer: int) -> torch.Tensor:
        """The dense tensor of local layer `layer`, complete. The first call of a layer exchanges; later ones
        return the same tensor. Every rank must call it for every layer, in order, rows or no rows."""
        if self._chunk is None:
            raise RuntimeError("the dense view was read outside a context-parallel prefill batch")
        if layer != self._ready:
            self._exchange(layer)
        return self._scratch.tensor(layer % SLOTS)

    def _exchange(self, layer: int) -> None:
        chunk = self._chunk
        assert chunk is not None
        started = time.perf_counter()
        self._finish_prefix(layer)
        # The chunk goes before the next prefix: it is waited for now, and would share the links with it.
        chunk.launch(self._sources[layer], self._scratch.rows(layer % SLOTS)).wait()
        self._stats.bytes += self._chunk_bytes
        self._ready = layer
        if self._prefetch_now and layer + 1 < len(self._sources):
            self._launch(layer + 1)
        self._stats.seconds += time.perf_counter() - started
        if self._check is not None:
            self._check(layer)

    def _finish_prefix(self, layer: int) -> None:
        if self._prefix is None:
            return
        pending = self._pending.pop(layer, None)
        if pending is None:
            self._stats.fallback += 1
            self._launch(layer)
            pending = self._pending.pop(layer)
        elif pending.done():
            self._stats.hit += 1
        else:
            self._stats.late += 1
        pending.wait()

    def _launch(self, layer: int) -> None:
        if self._prefix is None:
            return
        self._pending[layer] = self._prefix.launch(self._sources[layer], self._scratch.rows(layer % SLOTS))
        self._stats.bytes += self._prefix_bytes
