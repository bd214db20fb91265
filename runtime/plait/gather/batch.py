"""All kinds through a batch, the way that the policy chose: the one object that an engine's pool talks to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch

from plait.gather.copy_engine import Mover, Pull
from plait.gather.costs import CostTable
from plait.gather.peer_exchange import PeerChunkExchange, PeerExchange, Spans
from plait.gather.peer_view import PeerView
from plait.gather.plan import GatherPlan
from plait.gather.policy import Decision, Path
from plait.gather.runs import RunLimits
from plait.gather.scratch import Scratch
from plait.gather.trace import Trace
from plait.gather.view import DenseView, GatherStats
from plait.peer import Barrier


class Reader(Protocol):
    """What attention reads of one kind in one way: a `DenseView` or a `PeerView`."""

    def begin(
        self, plan: GatherPlan, *, rank: int, device: torch.device, prefetch: bool | None = None
    ) -> None:
        """Start a batch."""

    def consume(self, layer: int) -> torch.Tensor:
        """The tensor of local layer `layer`, complete. Every rank, every layer, in order."""

    def end(self) -> None:
        """Finish what is under way and forget the batch."""

    @property
    def active(self) -> bool:
        """Whether a batch is being read."""


def peer_readers(
    spans: Spans,
    scratch: Scratch,
    *,
    barrier: Barrier,
    mover: Mover,
    pull: Pull,
    costs: CostTable,
    stats: GatherStats,
    direct: bool,
    check: Callable[[int], None] | None = None,
    trace: Trace | None = None,
) -> dict[Path, Reader]:
    """The readers of one kind over mapped memory.

    barrier: of this kind alone. mover: shared by all kinds. direct: whether it may be read in place: of the
    MLA kind, where all ranks' rows are in reach of int32 (`peer_view.in_reach`).
    """
    now = PeerChunkExchange(spans, barrier, pull=pull)

    def dense(limits: RunLimits) -> DenseView:
        return DenseView(
            spans.own,
            scratch,
            ahead=PeerExchange(spans, mover, limits=limits, stats=stats),
            now=now,
            prefetch=True,
            stats=stats,
            check=check,
            trace=trace,
        )

    readers: dict[Path, Reader] = {
        Path.COPY: dense(costs.run_limits()),
        Path.PULL: dense(RunLimits(least_bytes=0, most_runs=0)),
    }
    if direct:
        row_shape = scratch.tensor(0).shape[1:]
        readers[Path.DIRECT] = PeerView(spans, barrier, row_shape=row_shape, dtype=scratch.tensor(0).dtype)
    return readers


class BatchGather:
    """kinds: per kind, its readers by path. meet: the batch's barrier (none with collectives).

    The order on the stream that computes, on every rank: batch barrier, first fetches, then per layer and
    kind the writes, `consume`, the reads.
    """

    def __init__(
        self,
        kinds: Mapping[str, Mapping[Path, Reader]],
        *,
        rank: int,
        device: torch.device,
        meet: Callable[[], None] | None,
    ) -> None:
        self._kinds = kinds
        self._rank, self._device = rank, device
        self._meet = meet
        self._reading: dict[str, Reader] = {}

    def begin(self, plan: GatherPlan, decision: Decision) -> None:
        """Start a batch, in which nothing was written yet. Every rank, with an equal plan and decision.

        A batch that was not read to its end is ended first: the barrier says that all reads of it are done.
        """
        self.end()
        if self._meet is not None:
            self._meet()
        if not decision.prefetch and decision.prefix is not Path.COPY:
            plan = plan.undivided()  # one move a layer instead of two
        self._reading = {kind: _reader(readers, decision.prefix) for kind, readers in self._kinds.items()}
        for reader in self._reading.values():
            reader.begin(plan, rank=self._rank, device=self._device, prefetch=decision.prefetch)

    def consume(self, kind: str, layer: int) -> torch.Tensor:
        """What attention reads of `kind` in local layer `layer`: the dense tensor, or all ranks' rows."""
        reader = self._reading.get(kind)
        if reader is None:
            raise RuntimeError("the dense view was read outside a context-parallel prefill batch")
        return reader.consume(layer)

    def end(self) -> None:
        """Finish what is under way and forget the batch."""
        for reader in self._reading.values():
            reader.end()
        self._reading = {}

    @property
    def active(self) -> bool:
        """Whether a batch is being read."""
        return bool(self._reading)


def _reader(readers: Mapping[Path, Reader], path: Path) -> Reader:
    """The reader of a kind for `path`; what is not read in place is pulled where the other kind is."""
    return readers[Path.PULL if path is Path.DIRECT and Path.DIRECT not in readers else path]
