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
from plait.gather.copy_engine import CudaMover, HostMover, Pull
from plait.gather.costs import H200, CostTable
from plait.gather.peer_exchange import Spans
from plait.gather.policy import (
    BatchShape,
    Decision,
    Path,
    RowShape,
    choose,
    collective_options,
    peer_options,
)
from plait.gather.trace import Trace

_FORCED = {GatherPath.COPY: Path.COPY, GatherPath.PULL: Path.PULL, GatherPath.PEER_VIEW: Path.DIRECT}
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
        self.costs = _costs()
        self._peers = peers
        row_bytes = {kind.name: kind.page_bytes // PAGE_SIZE for kind in kinds}
        self._row = RowShape(mla_bytes=row_bytes["mla"], index_bytes=row_bytes["index"], top_k=top_k)
        device = kinds[0].buffers[0].device
        rank = state.group().rank
        if peers is None:
            readers = {kind.name: _collective(kind, physical_pages, self.stats) for kind in kinds}
        else:
            readers = _over_peers(kinds, peers, self.costs, self.stats)
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
            return choose(shape, self.costs, peers=peers, direct=False, prefetch=settings.prefetch)
        if not peers:  # asked for, but the ranks cannot map: told at the start
            options = collective_options(shape, self.costs, prefetch=settings.prefetch)
            return min(options, key=lambda option: option.cost_us)
        options = peer_options(shape, self.costs, direct=False, prefetch=settings.prefetch)
        wanted = [option for option in options if option.prefix is forced]
        return min(wanted or options, key=lambda option: option.cost_us)


def _over_peers(
    kinds: Sequence[Kind], peers: PeerPools, costs: CostTable, stats: GatherStats
) -> dict[str, dict[Path, Reader]]:
    pull = _pull(peers.device)
    ranks = state.group().ranks
    mover = (
        CudaMover(device=peers.device, lanes=ranks, pull=pull)
        if peers.device.type == "cuda"
        else HostMover(lanes=ranks, pull=pull)
    )
    barriers = {"mla": peers.barriers.mla, "index": peers.barriers.index}
    return {
        kind.name: peer_readers(
            Spans(
                peers.memory,
                [segment_name(kind.name, layer) for layer in range(len(kind.buffers))],
                page_bytes=kind.page_bytes,
            ),
            kind.scratch,
            barrier=barriers[kind.name],
            mover=mover,
            pull=pull,
            costs=costs,
            stats=stats,
            direct=False,
            trace=_trace(kind.name),
        )
        for kind in kinds
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


def _pull(device: torch.device) -> Pull:
    from plait.kernels.pull import pull, pull_reference

    return pull if device.type == "cuda" else pull_reference


def _costs() -> CostTable:
    """The table that all ranks decide by: the first rank's. Ends the process if its file is no table."""
    told: list[CostTable | None] = [None]
    if state.group().rank == 0:
        file = state.settings.gather_costs
        try:
            told = [CostTable.from_json(file.read_text()) if file else H200]
        except (OSError, ValueError) as error:
            stop(f"PLAIT_GATHER_COSTS = {str(file)!r}: {error}. Fix: a table as CostTable.to_json writes it")
    return share_from_first(told)


def share_from_first(told: list[CostTable | None]) -> CostTable:
    """Rank 0's table on all ranks."""
    from sglang.srt.runtime_context import get_parallel

    group = get_parallel().attn_cp_group
    dist.broadcast_object_list(told, src=group.ranks[0], group=group.cpu_group)
    [table] = told
    assert table is not None
    return table


def new_group() -> dist.ProcessGroup:
    """A process group of this CP group's ranks. Every rank makes the same ones in the same order."""
    from sglang.srt.runtime_context import get_parallel

    ranks = list(get_parallel().attn_cp_group.ranks)
    group: dist.ProcessGroup = dist.new_group(ranks, backend="gloo" if state.settings.cpu else "nccl")
    # NCCL sets its buffers up at the first collective: better now than in the first request.
    dist.all_reduce(torch.zeros(1, device="cpu" if state.settings.cpu else "cuda"), group=group)
    return group
