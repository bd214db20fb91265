"""The dense view of one kind through the layers of a batch: consume this layer, fetch the next one ahead.

Each layer L: its rows of the chunk are written to their owners, then `consume(L)` exchanges the chunk part
and waits for the prefix part, and launches the prefix part of layer L + 1 into the other slot. If nothing
was launched for L (prefetch off), `consume` launches it itself: correctness never depends on the prefetch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from plait.gather.exchange import Exchange, PartIndex, Pending
from plait.gather.plan import GatherPlan
from plait.gather.scratch import SLOTS, Scratch


@dataclass
class GatherStats:
    """Counters of one rank, since start. Written by the forward thread only; readers may be a batch behind.

    bytes: came from other ranks. seconds: host time in launches and waits.
    hit / late / fallback: prefix parts that had arrived when asked for, had to be waited for, or had not
    been launched.
    """

    bytes: int = 0
    seconds: float = 0.0
    hit: int = 0
    late: int = 0
    fallback: int = 0


class DenseView:
    """One kind (MLA or index) of the dense view of the current batch.

    sources: per local layer, the owners' pool as uint8 [physical pages, page bytes].
    ahead: exchange for prefix parts; now: exchange for chunk parts. They must not share a process group:
    a chunk part must not queue behind a prefix part that is fetched ahead.
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
    ) -> None:
        self._sources = list(sources)
        self._scratch = scratch
        self._ahead, self._now = ahead, now
        self._prefetch = prefetch
        self._stats = stats
        self._check = check
        self._prefix: PartIndex | None = None
        self._chunk: PartIndex | None = None
        self._pending: dict[int, Pending] = {}
        self._ready = -1

    def begin(self, plan: GatherPlan, *, rank: int, device: torch.device) -> None:
        """Start a batch, and fetch the prefix of layer 0 ahead.

        HAZARD: the last batch must have run through all its layers, or `end` been called: a collective left
        in the air would be matched with this batch's.
        """
        if self._pending:
            raise RuntimeError("a batch began while a part of the last one is still under way")
        trash = self._scratch.trash
        self._prefix = PartIndex(plan.prefix, rank=rank, trash=trash, device=device)
        self._chunk = PartIndex(plan.chunk, rank=rank, trash=trash, device=device)
        self._ready = -1
        if self._prefetch:
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
        prefix, chunk = self._prefix, self._chunk
        if prefix is None or chunk is None:
            raise RuntimeError("the dense view was read outside a context-parallel prefill batch")
        slot = layer % SLOTS
        if layer == self._ready:
            return self._scratch.tensor(slot)
        started = time.perf_counter()
        self._finish_prefix(layer, prefix)
        source = self._sources[layer]
        self._now.launch(chunk, source, self._scratch.rows(slot)).wait()
        self._stats.bytes += chunk.remote_pages * source.shape[1]
        self._ready = layer
        if self._prefetch and layer + 1 < len(self._sources):
            self._launch(layer + 1)
        self._stats.seconds += time.perf_counter() - started
        if self._check is not None:
            self._check(layer)
        return self._scratch.tensor(slot)

    def _finish_prefix(self, layer: int, prefix: PartIndex) -> None:
        if not prefix.block:
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
        prefix = self._prefix
        if prefix is None or not prefix.block:
            return
        source = self._sources[layer]
        self._pending[layer] = self._ahead.launch(prefix, source, self._scratch.rows(layer % SLOTS))
        self._stats.bytes += prefix.remote_pages * source.shape[1]
