"""What an engine's pool reads through: the gather of its two kinds, over mapped memory or collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from plait.contract.layouts import PAGE_SIZE
from plait.contract.setting_kinds import GatherPath
from plait.contract.status import GatherPathName
from plait.engine import state
from plait.engine.entry import stop
from plait.engine.kernel_choice import settle
from plait.engine.peers import PeerPools
from plait.gather import (
    CollectiveExchange,
    DenseView,
    GatherPlan,
    GatherStats,
    Scratch,
    page_rows,
    trace_for,
)
from plait.gather.batch import BatchGather, Reader, peer_readers
from plait.gather.copy_engine import Pull, mover_for
from plait.gather.costs import H200, CostTable
from plait.gather.measure import agreed, measure
from plait.gather.peer_exchange import Spans
from plait.gather.peer_view import in_reach
from plait.gather.policy import (
    BatchShape,
    Decision,
    Path,
    RowShape,
    choose,
    peer_options,
)
from plait.gather.trace import Trace

_FORCED = {
    GatherPath.COPY: Path.COPY,
    GatherPath.PULL: Path.PULL,
    GatherPath.PEER_VIEW: Path.DIRECT,
}
_TOLD: dict[Path, GatherPathName] = {
    Path.COPY: "copy",
    Path.PULL: "pull",
    Path.COLLECTIVE: "collective",
    Path.DIRECT: "peer-view",
}


class Kind(NamedTuple):
    """One kind of rows: "mla" or "index". buffers: this rank's pool of each layer, as the engine has it."""

    name: str
    buffers: Sequence[torch.Tensor]
    scratch: Scratch

    @property
    def page_bytes(self) -> int:
        """Bytes of a page of one layer."""
        return self.scratch.rows(0).shape[1]


def segment_name(kind: str, layer: int) -> str:
    """The segment of a kind's pool of local layer `layer` in mapped memory."""
    return f"{kind}.{layer}"


class PoolGather:
    """The gather of one rank's pool, and the choice of the way for each batch.

    All ranks choose from the same batch metadata and the same costs, so they choose alike.
    """

    def __init__(
        self, kinds: Sequence[Kind], *, physical_pages: int, peers: PeerPools | None, top_k: int
    ) -> None:
        self.stats = GatherStats()
        self.batches: Counter[GatherPathName] = Counter()
        self._peers = peers
        _check_forced(mapped=peers is not None)
        row_bytes = {kind.name: kind.page_bytes // PAGE_SIZE for kind in kinds}
        self._row = RowShape(mla_bytes=row_bytes["mla"], index_bytes=row_bytes["index"], top_k=top_k)
        device = kinds[0].buffers[0].device
        rank = state.group().rank
        readers: dict[str, dict[Path, Reader]]
        self.pages_per_rank = 0
        """From one rank's first MLA page to the next one's, where attention reads in place; else 0."""
        if peers is None:
            self.costs = share_from_first(_table())
            readers = {kind.name: _collective(kind, physical_pages, self.stats) for kind in kinds}
        else:
            over = _OverPeers(kinds, peers)
            self.costs = share_from_first(over.measured(_table()))
            self.pages_per_rank = over.pages_per_rank
            readers = over.readers(self.costs, self.stats)
        self._gather = BatchGather(
            readers, rank=rank, device=device, meet=None if peers is None else peers.barriers.batch.meet
        )
        self.consume = self._gather.consume

    def begin(self, plan: GatherPlan, *, rows: int) -> Decision:
        """Start a batch. rows: query rows of every rank, padding included. Returns the choice."""
        decision = self._decide(plan, rows)
        self.batches[_TOLD[decision.prefix] if plan.prefix.pages else "none"] += 1
        if state.settings.gather_log:
            print(
                f"plait: gather of {plan.prefix.pages} prefix and {plan.chunk.pages} chunk pages for {rows} "
                f"rows: {decision.prefix.value}, {'ahead' if decision.prefetch else 'at once'}, about "
                f"{decision.cost_us:.0f} us a layer",
                flush=True,
            )
        self._gather.begin(plan, decision)
        return decision

    def end(self) -> None:
        """Finish what is under way and forget the batch."""
        self._gather.end()

    def _decide(self, plan: GatherPlan, rows: int) -> Decision:
        settings, peers = state.settings, self._peers is not None
        longest = int(np.diff(np.append(plan.base, plan.pages)).max()) * PAGE_SIZE
        shape = BatchShape.of(plan, rows=rows, tokens=longest, row=self._row, costs=self.costs)
        forced = _FORCED.get(settings.gather_path)
        if forced is None:
            # Not in place: until a GPU has shown it, who wants it asks for it.
            return choose(shape, self.costs, peers=peers, direct=False, prefetch=settings.prefetch)
        direct = forced is Path.DIRECT
        options = peer_options(shape, self.costs, direct=direct, prefetch=settings.prefetch)
        # A batch without a prefix has nothing to force: its chunk comes the one way there is.
        wanted = [option for option in options if option.prefix is forced]
        return min(wanted or options, key=lambda option: option.cost_us)


def _check_forced(*, mapped: bool) -> None:
    """End the process where the way that was asked for cannot be gone: a measurement would be another's."""
    way = state.settings.gather_path
    if way in _FORCED and not mapped:
        stop(
            f"PLAIT_GATHER_PATH = {way.value}: the ranks of this group do not map each other's memory "
            f"({state.peer_counts.reason or state.peer_counts.state}). Fix: auto or collective"
        )


class _OverPeers:
    """All kinds over mapped memory. `pages_per_rank`: 0 where MLA rows are not to be read in place."""

    def __init__(self, kinds: Sequence[Kind], peers: PeerPools) -> None:
        self._kinds = {kind.name: kind for kind in kinds}
        self._barriers = {"mla": peers.barriers.mla, "index": peers.barriers.index}
        self._pull: Pull = settle(peers.device)["pull"]
        ranks = state.group().ranks
        self._mover = mover_for(peers.device, lanes=ranks, pull=self._pull)
        self._spans = {
            kind.name: Spans(
                peers.memory,
                [segment_name(kind.name, layer) for layer in range(len(kind.buffers))],
                page_bytes=kind.page_bytes,
            )
            for kind in kinds
        }
        self.pages_per_rank = self._in_place() if state.settings.gather_path is GatherPath.PEER_VIEW else 0

    def _in_place(self) -> int:
        """Pages from rank to rank; ends the process where the last rank's rows have no int32 number."""
        spans = self._spans["mla"]
        row_bytes = spans.page_bytes // PAGE_SIZE
        if not in_reach(stride=spans.stride, row_bytes=row_bytes, ranks=spans.ranks):
            stop(
                f"PLAIT_GATHER_PATH = peer-view: {spans.ranks} ranks, {spans.stride} bytes apart, have more "
                f"rows of {row_bytes} bytes than int32 counts, in which attention takes them. Fix: auto, or "
                "a smaller --mem-fraction-static"
            )
        return spans.stride // spans.page_bytes

    def measured(self, table: CostTable) -> CostTable:
        """`table` with this host's speeds, unless its user gave it. Every rank, at once."""
        if state.settings.gather_costs is not None:
            return table
        return measure(
            self._spans["mla"],
            self._kinds["mla"].scratch,
            mover=self._mover,
            barrier=self._barriers["mla"],
            table=table,
        )

    def readers(self, costs: CostTable, stats: GatherStats) -> dict[str, dict[Path, Reader]]:
        """Per kind, its readers by path."""
        return {
            name: peer_readers(
                self._spans[name],
                kind.scratch,
                barrier=self._barriers[name],
                mover=self._mover,
                pull=self._pull,
                costs=costs,
                stats=stats,
                direct=name == "mla" and self.pages_per_rank > 0,
                trace=_trace(name),
            )
            for name, kind in self._kinds.items()
        }


def _collective(kind: Kind, physical_pages: int, stats: GatherStats) -> dict[Path, Reader]:
    # One group per kind and use: within a group the order of collectives is the order of layers.
    view = DenseView(
        [page_rows(buffer, physical_pages) for buffer in kind.buffers],
        kind.scratch,
        ahead=CollectiveExchange(new_group()),
        now=CollectiveExchange(new_group()),
        prefetch=state.settings.prefetch,
        stats=stats,
        trace=_trace(kind.name),
    )
    return {Path.COLLECTIVE: view}


def _trace(kind: str) -> Trace | None:
    return trace_for(kind, nvtx=state.settings.nvtx)


def _table() -> CostTable:
    """The table of costs to begin with. Ends the process if its file is no table."""
    file = state.settings.gather_costs
    try:
        return CostTable.from_json(file.read_text()) if file else H200
    except (OSError, ValueError) as error:
        stop(f"PLAIT_GATHER_COSTS = {str(file)!r}: {error}. Fix: a table as CostTable.to_json writes it")


def share_from_first(table: CostTable) -> CostTable:
    """Rank 0's table on all ranks: times differ between ranks, and decisions must not."""
    from sglang.srt.runtime_context import get_parallel

    return agreed(table, get_parallel().attn_cp_group.cpu_group)


def new_group() -> dist.ProcessGroup:
    """A process group of this CP group's ranks. Every rank makes the same ones in the same order."""
    from sglang.srt.runtime_context import get_parallel

    ranks = list(get_parallel().attn_cp_group.ranks)
    group: dist.ProcessGroup = dist.new_group(ranks, backend="gloo" if state.settings.cpu else "nccl")
    # NCCL sets its buffers up at the first collective: better now than in the first request.
    dist.all_reduce(torch.zeros(1, device="cpu" if state.settings.cpu else "cuda"), group=group)
    return group
