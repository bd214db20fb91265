"""Parts of dense views through real collectives: two and four rank processes over gloo."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.unit.gather.batches import LAYERS
from tests.unit.gather.rank_process import Outcome, gather_random_batches, run_ranks, stop_server

from plait.gather import CollectiveExchange, GatherPlan, GatherRequest, GatherStats, PartIndex, PartPlan

CASES = 100


@pytest.fixture(scope="module", autouse=True)
def server_of_ranks() -> Iterator[None]:
    yield
    stop_server()


@pytest.fixture(scope="module", params=[2, 4], ids=["2 ranks", "4 ranks"])
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[Outcome, Outcome]]:
    """Per rank: with prefetch, and without. Every layer of every case was compared on the way."""
    folder = tmp_path_factory.mktemp("gloo")
    return list(run_ranks(both_ways, ranks=request.param, folder=folder))


def both_ways(rank: int, ranks: int) -> tuple[Outcome, Outcome]:
    ahead = gather_random_batches(rank, ranks, cases=CASES, prefetch=True)
    return ahead, gather_random_batches(rank, ranks, cases=CASES, prefetch=False)


def test_dense_views_equal_the_reference_on_every_rank(outcomes: list[tuple[Outcome, Outcome]]) -> None:
    # The comparison is in the rank processes; here: that it covered what it should.
    for on, off in outcomes:
        assert on.cases == off.cases == CASES
        assert on.prefixes > CASES // 3
    assert any(on.idle > 5 for on, _ in outcomes), "some rank must have owned nothing now and then"


def test_ranks_launch_their_collectives_in_one_order(outcomes: list[tuple[Outcome, Outcome]]) -> None:
    for way in (0, 1):
        first, *others = [rank[way].orders for rank in outcomes]
        assert len(first) > CASES * LAYERS
        assert all(other == first for other in others)


def test_prefetch_hits_or_is_late_and_without_it_every_prefix_is_fetched_at_consume(
    outcomes: list[tuple[Outcome, Outcome]],
) -> None:
    for on, off in outcomes:
        parts = 2 * LAYERS * on.prefixes  # MLA and index
        assert on.stats.hit + on.stats.late == parts
        assert on.stats.fallback == 0
        assert (off.stats.hit, off.stats.late, off.stats.fallback) == (0, 0, parts)
        assert on.stats.bytes == off.stats.bytes > 0
        assert on.stats.seconds > 0


def idle_rank(rank: int, ranks: int) -> Outcome:
    """Only rank 1 owns pages; the others send padding and receive everything."""
    plan = GatherPlan.from_requests([GatherRequest(64, 65, np.array([5, 9, 13]))], ranks=ranks, budget=3)
    source = torch.full((4, 8), rank + 1, dtype=torch.uint8)
    target = torch.zeros((4, 8), dtype=torch.uint8)
    exchange = CollectiveExchange(dist.new_group(backend="gloo"))
    for part in (plan.prefix, plan.chunk):
        index = PartIndex(part, rank=rank, trash=3, device=torch.device("cpu"))
        pending = exchange.prepare(index).launch(source, target)
        pending.wait()
        assert pending.done()
    assert (target[:3] == 2).all()
    return Outcome(1, [], 0, 0, GatherStats())


def test_a_rank_without_pages_takes_part(tmp_path: Path) -> None:
    assert len(run_ranks(idle_rank, ranks=4, folder=tmp_path)) == 4


def test_own_pages_are_sent_and_padding_goes_to_trash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_world_size", lambda group: 2)
    exchange = CollectiveExchange(None)
    plan = GatherPlan.from_requests([GatherRequest(64, 128, np.array([2, 4, 5]))], ranks=2, budget=9)

    def lists(part: PartPlan, rank: int) -> tuple[list[int], list[int]]:
        fetch = exchange.prepare(PartIndex(part, rank=rank, trash=9, device=torch.device("cpu")))
        return fetch.send.tolist(), fetch.place.tolist()

    assert (plan.chunk.block, plan.chunk.pages, plan.chunk.remote_pages(0)) == (1, 2, 1)
    assert lists(plan.chunk, 0) == lists(plan.chunk, 1) == ([2], [1, 2])
    assert lists(plan.prefix, 1) == ([0], [0, 9])
