"""All kinds through a batch: the order of barrier, fetches and reads, and the bytes, by every decision."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from tests.unit.gather.batches import INDEX, LAYERS, MLA_KINDS
from tests.unit.gather.one_process import CPU, CountingBarrier
from tests.unit.gather.test_peer_exchange import (
    BUDGET,
    STRIPES,
    before_writes,
    kinds_of,
    mixed_batch,
    open_side,
    write_chunk,
)

from plait.contract.layouts import PAGE_SIZE
from plait.gather import GatherPlan, GatherRequest, GatherStats, Scratch, ScratchShape, page_rows
from plait.gather.batch import BatchGather, peer_readers
from plait.gather.copy_engine import HostMover
from plait.gather.costs import H200
from plait.gather.peer_view import peer_pages
from plait.gather.policy import Decision, Path
from plait.gather.reference import dense_reference
from plait.kernels.pull import pull_reference

DECISIONS = [
    Decision(Path.COPY, Path.PULL, True, 1.0),
    Decision(Path.COPY, Path.PULL, False, 1.0),
    Decision(Path.PULL, Path.PULL, True, 1.0),
    Decision(Path.PULL, Path.PULL, False, 1.0),
    Decision(Path.DIRECT, Path.DIRECT, False, 1.0),
]


@dataclass
class FakeReader:
    name: str
    log: list[str]
    plans: list[GatherPlan] = field(default_factory=list)
    active: bool = False

    def begin(self, plan: GatherPlan, *, rank: int, device: torch.device, prefetch: bool | None) -> None:
        self.plans.append(plan)
        self.active = True
        self.log.append(f"begin {self.name} {prefetch}")

    def consume(self, layer: int) -> torch.Tensor:
        self.log.append(f"consume {self.name} {layer}")
        return torch.zeros(1)

    def end(self) -> None:
        self.active = False
        self.log.append(f"end {self.name}")


@pytest.fixture
def plan() -> GatherPlan:
    return GatherPlan.from_requests(
        [GatherRequest(2 * PAGE_SIZE, 65, np.arange(2, 6))], ranks=2, budget=BUDGET
    )


def made(log: list[str], *, meet: bool = True) -> tuple[BatchGather, dict[str, dict[Path, FakeReader]]]:
    readers = {kind: {path: FakeReader(f"{kind} {path}", log) for path in Path} for kind in ("index", "mla")}
    del readers["index"][Path.DIRECT]
    barrier = CountingBarrier(log, name="batch")
    return BatchGather(readers, rank=0, device=CPU, meet=barrier.meet if meet else None), readers


def test_the_barrier_stands_between_the_last_batch_and_the_first_fetch(plan: GatherPlan) -> None:
    log: list[str] = []
    gather, _ = made(log)
    copy, direct = DECISIONS[0], DECISIONS[-1]
    gather.begin(plan, copy)
    gather.consume("mla", 1)
    gather.begin(plan, direct)
    assert log == [
        "meet batch",
        "begin index copy True",
        "begin mla copy True",
        "consume mla copy 1",
        "end index copy",
        "end mla copy",
        "meet batch",
        "begin index pull False",
        "begin mla direct False",
    ]
    assert gather.active
    gather.end()
    assert not gather.active


def test_what_is_not_read_in_place_is_pulled_in_one_move(plan: GatherPlan) -> None:
    gather, readers = made([])
    gather.begin(plan, DECISIONS[-1])
    [seen] = readers["index"][Path.PULL].plans
    assert (seen.prefix.pages, seen.chunk.pages) == (0, plan.pages)
    assert readers["mla"][Path.DIRECT].active
    assert not readers["mla"][Path.PULL].active


def test_collectives_have_no_barrier(plan: GatherPlan) -> None:
    log: list[str] = []
    gather, _ = made(log, meet=False)
    gather.begin(plan, Decision(Path.COLLECTIVE, Path.COLLECTIVE, True, 1.0))
    assert log == ["begin index collective True", "begin mla collective True"]


@pytest.mark.parametrize(
    ("path", "prefetch", "undivided"),
    [
        (Path.PULL, False, True),
        (Path.COLLECTIVE, False, True),
        (Path.PULL, True, False),
        (Path.COPY, False, False),
        (Path.COPY, True, False),
    ],
)
def test_without_prefetch_prefix_and_chunk_come_in_one_move(
    plan: GatherPlan, path: Path, prefetch: bool, undivided: bool
) -> None:
    gather, readers = made([])
    gather.begin(plan, Decision(path, path, prefetch, 1.0))
    [seen] = readers["mla"][path].plans
    assert seen.prefix.pages == (0 if undivided else plan.prefix.pages)
    assert seen.chunk.pages + seen.prefix.pages == plan.pages


def test_a_read_outside_a_batch_is_an_error(plan: GatherPlan) -> None:
    gather, _ = made([])
    with pytest.raises(RuntimeError, match="outside a context-parallel prefill batch"):
        gather.consume("mla", 0)
    gather.begin(plan, DECISIONS[0])
    gather.consume("mla", 0)
    gather.end()
    with pytest.raises(RuntimeError, match="outside"):
        gather.consume("index", 0)


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_decision_gives_every_rank_the_owners_bytes(ranks: int) -> None:
    """Batches with another decision each, one after the other over the same pools and scratch."""
    rng = np.random.default_rng(ranks)
    pages = {"index": INDEX, "mla": MLA_KINDS[1]}
    side = open_side(ranks, pages)
    kinds = kinds_of(side, rng, pages)
    costs = H200.from_json(H200.to_json().replace('"copy_call_us": 3.0', '"copy_call_us": 0.05'))
    gathers = []
    scratches = []
    for rank in range(ranks):
        stats, mover = GatherStats(), HostMover(lanes=ranks, pull=pull_reference)
        scratch = {
            name: Scratch(ScratchShape(BUDGET, page.shape, page.dtype), device=CPU)
            for name, page in pages.items()
        }
        readers = {
            name: peer_readers(
                kinds[name].spans[rank],
                scratch[name],
                barrier=CountingBarrier(),
                mover=mover,
                pull=pull_reference,
                costs=costs,
                stats=stats,
                direct=name == "mla",
            )
            for name in pages
        }
        scratches.append(scratch)
        gathers.append(BatchGather(readers, rank=rank, device=CPU, meet=CountingBarrier().meet))
    for turn in range(2 * len(DECISIONS)):
        decision = DECISIONS[turn % len(DECISIONS)]
        batch = mixed_batch(rng, ranks=ranks, stripes=STRIPES)
        plan = GatherPlan.from_requests(batch.requests, ranks=ranks, budget=BUDGET)
        ids = np.concatenate([one.pages for one in batch.requests])
        for kind in kinds.values():
            before_writes(kind, batch, ranks)
        for gather, scratch in zip(gathers, scratches, strict=True):
            for one in scratch.values():
                one.poison()
            gather.begin(plan, decision)
        for layer in range(LAYERS):
            for name, kind in kinds.items():
                write_chunk(kind, batch, layer, ranks)
                expected = dense_reference(kind.final[layer], batch.requests)
                for gather, spans in zip(gathers, kind.spans, strict=True):
                    read = gather.consume(name, layer)
                    assert read.dtype == kind.page.dtype
                    if decision.prefix is Path.DIRECT and name == "mla":
                        per_rank = spans.stride // spans.page_bytes
                        there = peer_pages(ids, ranks=ranks, pages_per_rank=per_rank)
                        every = page_rows(read, read.nbytes // spans.page_bytes)
                        assert torch.equal(every[torch.from_numpy(there)], expected)
                    else:
                        assert torch.equal(page_rows(read, BUDGET + 1)[: plan.pages], expected)
