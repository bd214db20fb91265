"""Random batches through real peer memory, every path, byte for byte: one rank's side, on GPUs and on CPUs.

Batches follow one another as in an engine, with nothing between them but the product's own barriers. Every
page remembers who wrote it last (`version`): what is stale, early or overwritten while it is read is seen.
Ranks are slowed down at random, before writes and before reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from tests.unit.gather.batches import INDEX, PageKind, mixed_batch

from plait.contract.layouts import PAGE_SIZE
from plait.gather import (
    CollectiveExchange,
    DenseView,
    Exchange,
    GatherPlan,
    GatherStats,
    Scratch,
    ScratchShape,
    page_rows,
)
from plait.gather.copy_engine import CudaMover, Pull, mover_for
from plait.gather.peer_exchange import PeerChunkExchange, PeerExchange, Spans
from plait.gather.peer_view import peer_pages
from plait.gather.runs import RunLimits
from plait.gather.scratch import POISON
from plait.gather.upload import uploaded
from plait.kernels.pull import pull, pull_reference, rank_pages
from plait.layout import owner, physical
from plait.peer import MappedMemory, Segment, open_barrier, open_peer_memory

MLA_FP8 = PageKind("mla-fp8", (PAGE_SIZE, 1, 656), torch.float8_e4m3fn)
MLA_BF16 = PageKind("mla-bf16", (PAGE_SIZE, 1, 576), torch.bfloat16)
KINDS = (MLA_FP8, MLA_BF16, INDEX)
LAYERS = 3
LIMITS = {
    "runs": RunLimits(0, 10**6),
    "mixed": RunLimits(9 * 8448, 5),
    "pull": RunLimits(0, 0),
    "two lanes": RunLimits(0, 10**6),
}
PATHS = (*LIMITS, "whole", "collective")
TIMEOUT_S = 30.0
SYNC_EVERY = 25


class Place(NamedTuple):
    """A rank process. folder: for the sockets of this opening."""

    rank: int
    ranks: int
    device: torch.device
    folder: Path


class NoBarrier:
    """A fault put in on purpose."""

    name, timeout_s = "none", 1.0

    def meet(self) -> None:
        return

    def fault(self) -> None:
        return None


class NoFork(CudaMover):
    """A fault put in on purpose: copies do not wait for the readers of the slot."""

    def __init__(self, device: torch.device, **given: Any) -> None:
        super().__init__(device=device, **given)
        for events in self._sets:
            events.fork = torch.cuda.Event()
            events.fork.record = lambda stream=None: None  # type: ignore[method-assign]


class Group:
    """Pools of all kinds in peer memory, filled; a view of each kind by each path."""

    def __init__(self, place: Place, *, stripes: int, kinds: tuple[PageKind, ...], broken: str) -> None:
        self.place, self.stripes, self.kinds = place, stripes, kinds
        self.budget = stripes * place.ranks
        names = {kind.name: [f"{kind.name}.{layer}" for layer in range(LAYERS)] for kind in kinds}
        self.memory: MappedMemory = open_peer_memory(
            [Segment(name, (stripes + 1) * kind.nbytes) for kind in kinds for name in names[kind.name]],
            rank=place.rank,
            ranks=place.ranks,
            device=place.device,
            folder=place.folder,
            unit_bytes=[kind.nbytes for kind in kinds],
            timeout_s=TIMEOUT_S,
        )
        barriers = [
            NoBarrier()
            if broken == "no-barrier"
            else open_barrier(self.memory, channel=channel, name=name, timeout_s=TIMEOUT_S)
            for channel, name in enumerate(("batch", *names))
        ]
        make = partial(NoFork if broken == "no-fork" else mover_for, place.device)
        self.meet: Callable[[], None] = barriers[0].meet
        self.pull: Pull = pull if place.device.type == "cuda" else pull_reference
        self.movers = {per_owner: make(lanes=place.ranks * per_owner, pull=self.pull) for per_owner in (1, 2)}
        # By kind: a batch writes the index and one of the MLA kinds.
        self.version = {kind.name: np.zeros(place.ranks * (stripes + 1), dtype=np.int64) for kind in kinds}
        self.spans, self.base, self.scratch, self.views = {}, {}, {}, {}
        for number, kind in enumerate(kinds):
            spans = Spans(self.memory, names[kind.name], page_bytes=kind.nbytes)
            self.spans[kind.name] = spans
            # [layer]: uint8 [ranks * physical pages, page bytes], made here and not read from any peer.
            self.base[kind.name] = [self._content(number, layer, kind) for layer in range(LAYERS)]
            for own, base in zip(spans.own, self.base[kind.name], strict=True):
                own.copy_(base.view(place.ranks, stripes + 1, -1)[place.rank])
            scratch = Scratch(ScratchShape(self.budget, kind.shape, kind.dtype), device=place.device)
            self.scratch[kind.name] = scratch
            self.views[kind.name] = self._views(kind, spans, scratch, barriers[1 + number])

    def _content(self, number: int, layer: int, kind: PageKind) -> torch.Tensor:
        generator = torch.Generator(self.place.device).manual_seed(1000 * number + layer)
        shape = (self.place.ranks * (self.stripes + 1), kind.nbytes)
        return torch.randint(256, shape, dtype=torch.uint8, device=self.place.device, generator=generator)

    def _views(
        self, kind: PageKind, spans: Spans, scratch: Scratch, barrier: Any
    ) -> dict[str, tuple[DenseView, GatherStats]]:
        chunk = PeerChunkExchange(spans, barrier, pull=self.pull)
        ways: dict[str, tuple[Exchange, Exchange, GatherStats]] = {}
        for path, limits in LIMITS.items():
            stats, lanes = GatherStats(), 2 if path == "two lanes" else 1
            ahead = PeerExchange(spans, self.movers[lanes], limits=limits, stats=stats, per_owner=lanes)
            ways[path] = (ahead, chunk, stats)
        ways["whole"] = (*ways["pull"][:2], GatherStats())
        if dist.is_initialized():
            groups = [dist.new_group() for _ in range(2)]
            ways["collective"] = (*map(CollectiveExchange, groups), GatherStats())
        return {
            path: (
                DenseView(spans.own, scratch, ahead=ahead, now=now, prefetch=True, stats=stats),
                stats,
            )
            for path, (ahead, now, stats) in ways.items()
        }

    def close(self) -> None:
        self.views.clear()
        self.spans.clear()
        _synchronize(self.place)
        self.memory.close()


def run_cases(group: Group, *, cases: int, seed: int, slow: bool) -> dict[str, Any]:
    """Run `cases` batches; RuntimeError at the first wrong byte, within SYNC_EVERY batches of it."""
    place = group.place
    wrong = torch.zeros(cases, dtype=torch.int64, device=place.device)
    told: list[str] = []
    seen = dict.fromkeys(PATHS, 0)
    most = 0
    for case in range(cases):
        rng = np.random.default_rng([seed, case])
        path, pages = _run_case(group, case, rng, wrong, slow=slow)
        told.append(f"{path}, {pages} pages")
        seen[path] += 1
        most = max(most, pages)
        if case % SYNC_EVERY == SYNC_EVERY - 1 or case == cases - 1:
            _synchronize(place)
            for bad in wrong.nonzero().flatten().tolist():
                raise RuntimeError(f"rank {place.rank}: case {bad} of seed {seed} ({told[bad]}): wrong bytes")
    return {"cases": cases, "paths": seen, "largest_tokens": most * PAGE_SIZE}


def _run_case(
    group: Group, case: int, rng: np.random.Generator, wrong: torch.Tensor, *, slow: bool
) -> tuple[str, int]:
    place, ranks = group.place, group.place.ranks
    batch = mixed_batch(rng, ranks=ranks, stripes=group.stripes)
    plan = GatherPlan.from_requests(batch.requests, ranks=ranks, budget=group.budget)
    path = str(rng.choice([name for name in PATHS if name != "collective" or dist.is_initialized()]))
    if path == "whole":
        plan = plan.undivided()
    prefetch = bool(rng.random() < 0.75)
    mla = group.kinds[int(rng.integers(0, len(group.kinds) - 1))]
    sleeps = rng.integers(0, 4 * ranks, (LAYERS, 4)) if slow else np.full((LAYERS, 4), -1)
    new = np.array(batch.new_pages, dtype=np.int64)
    kinds = [kind for kind in group.kinds if kind is INDEX or kind is mla]
    mask = case % 255 + 1
    for kind in kinds:
        group.version[kind.name][new] = mask
    ids = np.concatenate([one.pages for one in batch.requests])
    mine = physical(new[owner(new, ranks) == place.rank], ranks)
    rows = owner(ids, ranks) * (group.stripes + 1) + physical(ids, ranks)
    peers = peer_pages(ids, ranks=ranks, pages_per_rank=group.memory.stride // INDEX.nbytes)
    versions = [group.version[kind.name][ids] for kind in kinds]
    own, flat, direct, *told = uploaded(mine, rows, peers, *versions, device=place.device)
    xors = [version.to(torch.uint8)[:, None] for version in told]

    group.meet()
    for kind in kinds:
        group.scratch[kind.name].poison()
        view, _ = group.views[kind.name][path]
        view.begin(plan, rank=place.rank, device=place.device, prefetch=prefetch)
    for layer in range(LAYERS):
        for number, kind in enumerate(kinds):
            base = group.base[kind.name][layer]
            expected = base.index_select(0, flat) ^ xors[number]
            _slow_down(place, sleeps[layer, 2 * number])
            fresh = base.view(ranks, group.stripes + 1, -1)[place.rank].index_select(0, own) ^ mask
            group.spans[kind.name].own[layer].index_copy_(0, own, fresh)
            dense = group.views[kind.name][path][0].consume(layer)
            _slow_down(place, sleeps[layer, 2 * number + 1])
            got = page_rows(dense, group.budget + 1)
            wrong[case] += (got[: plan.pages] != expected).any()
            wrong[case] += (got[plan.pages : group.budget] != POISON).any()
            if kind is INDEX and path != "collective":
                spans = group.spans[kind.name]
                there = rank_pages(spans.spanning[layer], spans.stride, kind.nbytes)
                wrong[case] += (there.index_select(0, direct) != expected).any()
    return path, plan.pages


def _slow_down(place: Place, who: int) -> None:
    """One rank in four cases sleeps for a random while on its device; the others run ahead."""
    if who % place.ranks == place.rank and 0 <= who < place.ranks:
        if place.device.type == "cuda":
            torch.cuda._sleep(400_000)
        else:
            time.sleep(0.002)


def _synchronize(place: Place) -> None:
    if place.device.type == "cuda":
        torch.cuda.synchronize(place.device)
