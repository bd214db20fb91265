"""Parts read out of all ranks' memory, every rank of a group in one process: bytes, barriers, hazards."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tests.unit.gather.batches import (
    INDEX,
    LAYERS,
    MLA_KINDS,
    TRASH,
    Batch,
    PageKind,
    mixed_batch,
    own_new_pages,
)
from tests.unit.gather.one_process import CPU, CountingBarrier, Side, random_bytes
from torch.utils._python_dispatch import TorchDispatchMode

from plait.contract.layouts import PAGE_SIZE
from plait.gather import DenseView, GatherPlan, GatherRequest, GatherStats, Scratch, ScratchShape, page_rows
from plait.gather.copy_engine import HostMover
from plait.gather.peer_exchange import PeerChunkExchange, PeerExchange, Spans
from plait.gather.reference import dense_reference
from plait.gather.runs import RunLimits
from plait.gather.scratch import POISON
from plait.kernels.pull import pull_reference
from plait.peer import Segment

STRIPES, BUDGET = 10, 40
NARROW = PageKind("narrow, for many cases", (PAGE_SIZE, 1, 16), torch.uint8)
NARROW_INDEX = PageKind("narrow index", (1, PAGE_SIZE * 12), torch.uint8)


class Kind(NamedTuple):
    """One kind's pools on all ranks. final: [layer][rank], after the writes."""

    page: PageKind
    final: list[list[torch.Tensor]]
    spans: list[Spans]


def kinds_of(side: Side, rng: np.random.Generator, pages: dict[str, PageKind]) -> dict[str, Kind]:
    kinds = {}
    for name, page in pages.items():
        final = [
            [random_bytes(rng, (STRIPES + 1) * page.nbytes).view(STRIPES + 1, -1) for _ in range(side.ranks)]
            for _ in range(LAYERS)
        ]
        names = [f"{name}.{layer}" for layer in range(LAYERS)]
        spans = [Spans(side.at(rank), names, page_bytes=page.nbytes) for rank in range(side.ranks)]
        kinds[name] = Kind(page, final, spans)
    return kinds


def open_side(ranks: int, pages: dict[str, PageKind]) -> Side:
    segments = [
        Segment(f"{name}.{layer}", (STRIPES + 1) * page.nbytes)
        for layer in range(LAYERS)
        for name, page in pages.items()
    ]
    return Side(segments, ranks=ranks, unit_bytes=[page.nbytes for page in pages.values()])


def view_of(kind: Kind, rank: int, *, limits: RunLimits, per_owner: int, prefetch: bool) -> DenseView:
    spans = kind.spans[rank]
    scratch = Scratch(ScratchShape(BUDGET, kind.page.shape, kind.page.dtype), device=CPU)
    scratch.poison()
    stats = GatherStats()
    mover = HostMover(lanes=spans.ranks * per_owner, pull=pull_reference)
    return DenseView(
        spans.own,
        scratch,
        ahead=PeerExchange(spans, mover, limits=limits, stats=stats, per_owner=per_owner),
        now=PeerChunkExchange(spans, CountingBarrier(), pull=pull_reference),
        prefetch=prefetch,
        stats=stats,
    )


def before_writes(kind: Kind, batch: Batch, ranks: int) -> None:
    """All pools as they are before the batch: its new pages and the reserved ones hold `TRASH`."""
    for layer in range(LAYERS):
        for rank in range(ranks):
            own = kind.spans[rank].own[layer]
            own.copy_(kind.final[layer][rank])
            own[0] = TRASH
            own[own_new_pages(batch, rank=rank, ranks=ranks)] = TRASH


def write_chunk(kind: Kind, batch: Batch, layer: int, ranks: int) -> None:
    for rank in range(ranks):
        pages = own_new_pages(batch, rank=rank, ranks=ranks)
        kind.spans[rank].own[layer][pages] = kind.final[layer][rank][pages]


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("mla", [*MLA_KINDS, NARROW], ids=lambda kind: kind.name)
def test_dense_views_equal_the_reference(ranks: int, mla: PageKind) -> None:
    """Every layer, every rank, both kinds, over poisoned scratch; prefetch, limits and lanes at random."""
    rng = np.random.default_rng([ranks, mla.nbytes])
    pages = {"mla": mla, "index": NARROW_INDEX if mla is NARROW else INDEX}
    side = open_side(ranks, pages)
    kinds = kinds_of(side, rng, pages)
    runs = fragments = 0
    for _ in range(40 if mla is NARROW else 6):
        batch = mixed_batch(rng, ranks=ranks, stripes=STRIPES)
        plan = GatherPlan.from_requests(batch.requests, ranks=ranks, budget=BUDGET)
        if rng.random() < 0.2:
            plan = plan.undivided()
        given = {
            "limits": RunLimits(
                int(rng.choice([0, 0, 2, 4])) * mla.nbytes, int(rng.choice([0, 2, 100, 100]))
            ),
            "per_owner": int(rng.choice([1, 2, 3])),
            "prefetch": bool(rng.random() < 0.7),
        }
        for kind in kinds.values():
            before_writes(kind, batch, ranks)
            views = [view_of(kind, rank, **given) for rank in range(ranks)]
            for rank, view in enumerate(views):
                view.begin(plan, rank=rank, device=CPU)
            for layer in range(LAYERS):
                write_chunk(kind, batch, layer, ranks)
                expected = dense_reference(kind.final[layer], batch.requests)
                for rank, view in enumerate(views):
                    rows = page_rows(view.consume(layer), BUDGET + 1)
                    assert torch.equal(rows[: plan.pages], expected), f"rank {rank} layer {layer}: {batch}"
                    assert (rows[plan.pages :] == POISON).all(), "a page beyond the plan was written"
            stats = views[0]._stats
            runs, fragments = runs + stats.runs, fragments + stats.fragment_pages
            assert stats.run_pages + stats.fragment_pages == plan.prefix.pages
            remote = plan.prefix.remote_pages(0) + plan.chunk.remote_pages(0)
            assert stats.bytes == LAYERS * remote * kind.page.nbytes
    if mla is NARROW:
        assert runs > 5, "some prefixes must have been copied in runs"
        assert fragments > 5, "and some pages pulled"


def small(ranks: int = 2) -> tuple[Kind, Batch, GatherPlan]:
    pages = {"mla": MLA_KINDS[2]}
    kind = kinds_of(open_side(ranks, pages), np.random.default_rng(1), pages)["mla"]
    batch = Batch([GatherRequest(6 * PAGE_SIZE, 65, np.arange(ranks, ranks + 8, dtype=np.int64))])
    before_writes(kind, batch, ranks)
    return kind, batch, GatherPlan.from_requests(batch.requests, ranks=ranks, budget=BUDGET)


def test_chunks_are_read_after_a_barrier_in_each_layer_and_prefixes_need_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind, _, plan = small()
    log: list[str] = []
    spans = kind.spans[0]

    def noted(*args: object, **kwargs: object) -> None:
        log.append("pull")

    mover = HostMover(lanes=2, pull=noted)
    view = DenseView(
        spans.own,
        Scratch(ScratchShape(BUDGET, kind.page.shape, kind.page.dtype), device=CPU),
        ahead=PeerExchange(spans, mover, limits=RunLimits(0, 100), stats=GatherStats()),
        now=PeerChunkExchange(spans, CountingBarrier(log), pull=noted),
        prefetch=True,
        stats=GatherStats(),
    )
    view.begin(plan, rank=0, device=CPU)
    assert log == []
    for layer in range(LAYERS):
        view.consume(layer)
        view.consume(layer)
    assert log == ["meet test", "pull"] * LAYERS


@pytest.mark.parametrize("path", ["runs", "fragments"])
def test_every_layer_runs_the_same_few_operations(path: str) -> None:
    """Nothing is made, copied from the host or looked up in a layer: only views, and the moves themselves."""
    kind, _, plan = small()
    spans, stats = kind.spans[0], GatherStats()
    limits = RunLimits(0, 100 if path == "runs" else 0)
    mover = HostMover(lanes=2, pull=lambda *given: None)
    view = DenseView(
        spans.own,
        Scratch(ScratchShape(BUDGET, kind.page.shape, kind.page.dtype), device=CPU),
        ahead=PeerExchange(spans, mover, limits=limits, stats=stats),
        now=PeerChunkExchange(spans, CountingBarrier(), pull=lambda *given: None),
        prefetch=True,
        stats=stats,
    )
    view.begin(plan, rank=0, device=CPU)
    layers = []
    for layer in range(LAYERS):
        with Operations() as ran:
            view.consume(layer)
        layers.append(ran.names)
    assert layers[0] == layers[1]
    views = {"aten.view", "aten.slice", "aten.as_strided"}
    assert set(layers[0]) <= (views | {"aten.copy_"} if path == "runs" else views)
    assert layers[0].count("aten.copy_") == stats.runs


class Operations(TorchDispatchMode):
    """Names of the tensor operations that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.names.append(str(func.overloadpacket))
        return func(*args, **(kwargs or {}))


def test_a_pool_of_another_kind_is_no_source() -> None:
    kind, _, _ = small()
    with pytest.raises(KeyError):
        kind.spans[0].of(torch.zeros(4))
    assert kind.spans[1].of(kind.spans[1].own[2]) is kind.spans[1].spanning[2]


def test_memory_that_was_opened_without_the_page_is_refused() -> None:
    side = Side([Segment("mla.0", 4096)], ranks=2, unit_bytes=[4096])
    with pytest.raises(ValueError, match="4096 bytes apart, which is no multiple of the page's 656"):
        Spans(side.at(0), ["mla.0"], page_bytes=656)


def test_a_mover_with_other_lanes_is_refused() -> None:
    kind, _, _ = small()
    mover = HostMover(lanes=3, pull=pull_reference)
    with pytest.raises(ValueError, match="3 lanes for 2 ranks x 2"):
        PeerExchange(kind.spans[0], mover, limits=RunLimits(0, 1), stats=GatherStats(), per_owner=2)
