"""The dense view's order of events: what is launched when, what is waited for, what is counted."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from tests.unit.gather.batches import INDEX, LAYERS, MLA_KINDS, PageKind, random_batch, random_pools

from plait.contract.layouts import PAGE_SIZE
from plait.gather import (
    DenseView,
    GatherPlan,
    GatherRequest,
    GatherStats,
    PartIndex,
    PartPlan,
    Scratch,
    ScratchShape,
    page_rows,
)
from plait.gather.reference import dense_reference

CPU = torch.device("cpu")
PAGE_BYTES = PAGE_SIZE * 4


@dataclass
class FakePending:
    """Arrives when `wait` is called; `arrived` is what `done` says until then."""

    log: list[str]
    name: str
    arrived: bool

    def done(self) -> bool:
        return self.arrived

    def wait(self) -> None:
        self.log.append(f"wait {self.name}")


@dataclass
class FakeExchange:
    """Notes launches and waits; moves nothing."""

    log: list[str]
    name: str
    sources: list[torch.Tensor]
    arrived: bool = False
    slots: list[int] = field(default_factory=list)

    def prepare(self, part: PartIndex) -> FakeExchange:
        return self

    def launch(self, source: torch.Tensor, target: torch.Tensor) -> FakePending:
        layer = next(i for i, one in enumerate(self.sources) if one is source)
        self.slots.append(target.data_ptr())
        self.log.append(f"{self.name} {layer}")
        return FakePending(self.log, f"{self.name} {layer}", self.arrived)


@dataclass
class Bench:
    """A view of rank 0 of 2 over fakes."""

    prefetch: bool
    arrived: bool = False
    prefix: int = 2 * PAGE_SIZE
    log: list[str] = field(default_factory=list)
    stats: GatherStats = field(default_factory=GatherStats)

    def __post_init__(self) -> None:
        self.sources = [torch.zeros(4, PAGE_BYTES, dtype=torch.uint8) for _ in range(LAYERS)]
        self.scratch = Scratch(ScratchShape(8, (PAGE_SIZE,), torch.float32), device=CPU)
        self.ahead = FakeExchange(self.log, "prefix", self.sources, self.arrived)
        self.now = FakeExchange(self.log, "chunk", self.sources)
        self.view = DenseView(
            self.sources,
            self.scratch,
            ahead=self.ahead,
            now=self.now,
            prefetch=self.prefetch,
            stats=self.stats,
        )
        pages = np.arange(2, 2 + self.prefix // PAGE_SIZE + 3, dtype=np.int64)
        self.plan = GatherPlan.from_requests(
            [GatherRequest(self.prefix, 2 * PAGE_SIZE + 1, pages)], ranks=2, budget=8
        )

    def begin(self) -> None:
        self.view.begin(self.plan, rank=0, device=CPU)


def test_prefetch_runs_one_layer_ahead_after_the_chunk() -> None:
    bench = Bench(prefetch=True)
    bench.begin()
    assert bench.log == ["prefix 0"]
    for layer in range(LAYERS):
        bench.view.consume(layer)
    assert bench.log == [
        "prefix 0",
        *("wait prefix 0", "chunk 0", "wait chunk 0", "prefix 1"),
        *("wait prefix 1", "chunk 1", "wait chunk 1", "prefix 2"),
        *("wait prefix 2", "chunk 2", "wait chunk 2"),
    ]


def test_without_prefetch_consume_launches_the_prefix_itself() -> None:
    bench = Bench(prefetch=False)
    bench.begin()
    assert bench.log == []
    for layer in range(LAYERS):
        bench.view.consume(layer)
    assert bench.log == [
        f"{event} {layer}"
        for layer in range(LAYERS)
        for event in ("prefix", "wait prefix", "chunk", "wait chunk")
    ]
    assert (bench.stats.hit, bench.stats.late, bench.stats.fallback) == (0, 0, LAYERS)


@pytest.mark.parametrize("asked", [True, False])
def test_one_batch_may_be_asked_otherwise(asked: bool) -> None:
    bench = Bench(prefetch=not asked)
    for prefetch in (asked, None):
        before = bench.stats.fallback
        bench.view.begin(bench.plan, rank=0, device=CPU, prefetch=prefetch)
        for layer in range(LAYERS):
            bench.view.consume(layer)
        ahead = asked if prefetch is not None else not asked
        assert bench.stats.fallback - before == (0 if ahead else LAYERS)


@pytest.mark.parametrize(("arrived", "counts"), [(True, (LAYERS, 0, 0)), (False, (0, LAYERS, 0))])
def test_a_prefix_that_has_arrived_is_a_hit_and_else_late(
    arrived: bool, counts: tuple[int, int, int]
) -> None:
    bench = Bench(prefetch=True, arrived=arrived)
    bench.begin()
    for layer in range(LAYERS):
        bench.view.consume(layer)
    assert (bench.stats.hit, bench.stats.late, bench.stats.fallback) == counts


@pytest.mark.parametrize("prefetch", [True, False])
def test_bytes_are_remote_pages_times_page_bytes(prefetch: bool) -> None:
    bench = Bench(prefetch=prefetch)
    bench.begin()
    for layer in range(LAYERS):
        bench.view.consume(layer)
    # Rank 0 owns logical pages 2, 4, 6 of 2..6: one page of the prefix and one of the chunk are remote.
    assert bench.stats.bytes == LAYERS * 2 * PAGE_BYTES
    assert bench.stats.seconds > 0


def test_layers_alternate_between_two_slots_and_a_prefix_never_lands_in_the_slot_being_read() -> None:
    bench = Bench(prefetch=True)
    bench.begin()
    tensors = [bench.view.consume(layer).data_ptr() for layer in range(LAYERS)]
    assert tensors[0] == tensors[2] != tensors[1]
    assert bench.ahead.slots == bench.now.slots == tensors


def test_later_reads_of_a_layer_exchange_nothing() -> None:
    bench = Bench(prefetch=True)
    bench.begin()
    first = bench.view.consume(0)
    seen = list(bench.log)
    assert bench.view.consume(0) is first
    assert bench.log == seen


def test_without_a_prefix_nothing_is_fetched_ahead_and_nothing_counted() -> None:
    bench = Bench(prefetch=True, prefix=0)
    bench.begin()
    for layer in range(LAYERS):
        bench.view.consume(layer)
    assert bench.log == [f"{e} {layer}" for layer in range(LAYERS) for e in ("chunk", "wait chunk")]
    assert (bench.stats.hit, bench.stats.late, bench.stats.fallback) == (0, 0, 0)


def test_a_read_outside_a_batch_is_an_error() -> None:
    bench = Bench(prefetch=True)
    with pytest.raises(RuntimeError, match="outside a context-parallel prefill batch"):
        bench.view.consume(0)
    bench.begin()
    assert bench.view.active
    bench.view.consume(0)
    bench.view.end()
    assert not bench.view.active
    with pytest.raises(RuntimeError, match="outside a context-parallel prefill batch"):
        bench.view.consume(1)


def test_a_batch_does_not_begin_while_a_part_is_under_way() -> None:
    bench = Bench(prefetch=True)
    bench.begin()
    with pytest.raises(RuntimeError, match="still under way"):
        bench.begin()


def test_end_waits_for_what_is_under_way_and_then_a_batch_may_begin() -> None:
    bench = Bench(prefetch=True)
    bench.begin()
    bench.view.end()
    assert bench.log == ["prefix 0", "wait prefix 0"]
    bench.begin()
    bench.view.consume(0)


def test_a_batch_that_ran_through_its_layers_needs_no_end() -> None:
    bench = Bench(prefetch=True)
    for _ in range(2):
        bench.begin()
        for layer in range(LAYERS):
            bench.view.consume(layer)
    assert bench.log[: len(bench.log) // 2] == bench.log[len(bench.log) // 2 :]


def test_the_check_sees_each_layer_once_when_it_is_complete() -> None:
    bench = Bench(prefetch=True)
    seen: list[tuple[int, str]] = []
    view = DenseView(
        bench.sources,
        bench.scratch,
        ahead=bench.ahead,
        now=bench.now,
        prefetch=True,
        stats=bench.stats,
        check=lambda layer: seen.append((layer, next(e for e in reversed(bench.log) if "wait" in e))),
    )
    view.begin(bench.plan, rank=0, device=CPU)
    for layer in (0, 0, 1):
        view.consume(layer)
    assert seen == [(0, "wait chunk 0"), (1, "wait chunk 1")]


@dataclass
class CopyExchange:
    """Moves a part within one process, out of all ranks' pools. Arrives only when waited for."""

    pools: list[list[torch.Tensor]]
    rank: int

    def prepare(self, part: PartIndex) -> CopyFetch:
        return CopyFetch(self.pools, self.rank, part)


@dataclass
class CopyFetch:
    pools: list[list[torch.Tensor]]
    rank: int
    part: PartIndex

    def launch(self, source: torch.Tensor, target: torch.Tensor) -> CopyPending:
        layer = next(i for i, ranks in enumerate(self.pools) if ranks[self.rank] is source)
        return CopyPending(self.part.plan, [pool.clone() for pool in self.pools[layer]], target)


@dataclass
class CopyPending:
    part: PartPlan
    pools: list[torch.Tensor]
    target: torch.Tensor

    def done(self) -> bool:
        return False

    def wait(self) -> None:
        pages = zip(self.part.owner, self.part.physical, self.part.dense, strict=True)
        for rank, page, dense in pages:
            self.target[dense] = self.pools[rank][page]


@pytest.mark.parametrize("kind", [*MLA_KINDS, INDEX], ids=lambda kind: kind.name)
def test_another_exchange_fits_the_seam(kind: PageKind) -> None:
    """Any way of moving parts gives the reference's bytes, in the dtype that attention reads."""
    rng = np.random.default_rng(7)
    for _ in range(10):
        batch = random_batch(rng, ranks=3, stripes=5)
        plan = GatherPlan.from_requests(batch.requests, ranks=3, budget=30)
        pools = random_pools(rng, kind, ranks=3, stripes=5)
        scratch = Scratch(ScratchShape(30, kind.shape, kind.dtype), device=CPU)
        scratch.poison()
        exchange = CopyExchange(pools, rank=1)
        view = DenseView(
            [ranks[1] for ranks in pools],
            scratch,
            ahead=exchange,
            now=exchange,
            prefetch=False,
            stats=GatherStats(),
        )
        view.begin(plan, rank=1, device=CPU)
        for layer in range(LAYERS):
            dense = view.consume(layer)
            assert dense.dtype == kind.dtype
            assert dense.shape == (31 * kind.shape[0], *kind.shape[1:])
            rows = page_rows(dense, 31)[: plan.pages]
            assert torch.equal(rows, dense_reference(pools[layer], batch.requests))
