"""Which way a batch's pages come: the crossovers on the shipped table, and what must hold on any table."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.contract.layouts import PAGE_SIZE
from plait.gather import GatherPlan, GatherRequest
from plait.gather.costs import H200, CostTable
from plait.gather.policy import (
    BatchShape,
    Decision,
    Path,
    RowShape,
    choose,
    collective_options,
    peer_options,
)

GLM5_FP8 = RowShape(mla_bytes=656, index_bytes=132, top_k=2048)


def shape(
    *, prefix: int, new: int, ranks: int = 4, shuffled: bool = False, costs: CostTable = H200
) -> BatchShape:
    """One request of `prefix` cached and `new` tokens, as a fresh pool hands pages out, or shuffled."""
    cached, count = prefix // PAGE_SIZE, -(-(prefix + new) // PAGE_SIZE)
    pages = np.arange(count, dtype=np.int64) + ranks
    if shuffled:
        pages[:cached] = np.random.default_rng(0).permutation(pages[:cached])
    plan = GatherPlan.from_requests([GatherRequest(prefix, new, pages)], ranks=ranks, budget=count)
    rows = -(-(count - cached) // ranks) * PAGE_SIZE if new >= PAGE_SIZE else new
    return BatchShape.of(plan, rows=rows, tokens=prefix + new, row=GLM5_FP8, costs=costs)


def way(batch: BatchShape, **given: bool) -> tuple[Path, Path, bool]:
    asked = {"peers": True, "direct": True, "prefetch": True, **given}
    decision = choose(batch, H200, **asked)
    return decision.prefix, decision.chunk, decision.prefetch


COPY_AHEAD = (Path.COPY, Path.PULL, True)
PULL_AHEAD = (Path.PULL, Path.PULL, True)
PULL_AT_ONCE = (Path.PULL, Path.PULL, False)
DIRECT = (Path.DIRECT, Path.DIRECT, False)


@pytest.mark.parametrize(
    ("prefix", "new", "expected"),
    [
        pytest.param(131072, 8192, COPY_AHEAD, id="a chunk on a long prefix hides the copies"),
        pytest.param(524288, 8192, COPY_AHEAD, id="and on a very long one"),
        pytest.param(131072, 16, DIRECT, id="few rows read what they need in place"),
        pytest.param(524288, 64, DIRECT, id="more rows, where the prefix is four times as long"),
        pytest.param(131072, 1024, COPY_AHEAD, id="many rows would read more than there is"),
        pytest.param(64, 8192, PULL_AT_ONCE, id="one page comes with the chunk"),
        pytest.param(0, 8192, PULL_AT_ONCE, id="no prefix"),
    ],
)
def test_crossovers_on_the_shipped_table(prefix: int, new: int, expected: tuple[Path, Path, bool]) -> None:
    assert way(shape(prefix=prefix, new=new)) == expected


def test_fragments_are_left_to_the_kernel() -> None:
    batch = shape(prefix=131072, new=8192, shuffled=True)
    assert (batch.runs, batch.run_bytes) == (0, 0)
    assert way(batch) == PULL_AHEAD


def test_without_mapped_memory_there_are_collectives_only() -> None:
    for prefix, ahead in ((131072, True), (0, False)):
        batch = shape(prefix=prefix, new=8192)
        assert way(batch, peers=False) == (Path.COLLECTIVE, Path.COLLECTIVE, ahead)


@pytest.mark.parametrize("peers", [True, False])
@pytest.mark.parametrize("prefix", [0, 64, 131072])
def test_a_prefetch_that_is_off_stays_off(peers: bool, prefix: int) -> None:
    assert way(shape(prefix=prefix, new=8192), peers=peers, prefetch=False)[2] is False


def test_in_place_is_chosen_only_where_it_can_be() -> None:
    assert way(shape(prefix=131072, new=16), direct=False)[0] is not Path.DIRECT


def test_a_shape_counts_bytes_of_others_and_copies_of_both_kinds() -> None:
    batch = shape(prefix=131072, new=8192)
    page = PAGE_SIZE * 788
    assert (batch.ranks, batch.prefix_pages, batch.rows, batch.tokens) == (4, 2048, 2048, 139264)
    assert batch.prefix_bytes == 2048 * page * 3 / 4
    assert batch.chunk_bytes == 128 * page * 3 / 4
    assert batch.runs == 8, "a run per owner, of MLA and of index pages"
    assert batch.run_bytes == batch.prefix_bytes


numbers = st.floats(0.5, 500.0)
shares = st.floats(0.0, 1.0)


@st.composite
def tables(draw: st.DrawFn) -> CostTable:
    return CostTable(
        source="drawn",
        **{name: draw(shares if name.endswith("_share") else numbers) for name in H200.numbers()},
    )


@st.composite
def shapes(draw: st.DrawFn) -> BatchShape:
    ranks = draw(st.integers(2, 8))
    prefix = draw(st.integers(0, 9000))
    page = PAGE_SIZE * GLM5_FP8.bytes * (ranks - 1) / ranks
    part = draw(st.sampled_from([0.0, 0.5, 1.0])) if prefix else 0.0
    rows = draw(st.integers(1, 4096))
    return BatchShape(
        ranks=ranks,
        rows=rows,
        tokens=prefix * PAGE_SIZE + rows,
        prefix_pages=prefix,
        prefix_bytes=prefix * page,
        chunk_bytes=draw(st.integers(1, 300)) * page,
        runs=draw(st.integers(1, 64)) if part else 0,
        run_bytes=prefix * page * part,
        row=GLM5_FP8,
    )


def options(batch: BatchShape, costs: CostTable, *, prefetch: bool = True) -> dict[object, Decision]:
    every = [
        *peer_options(batch, costs, direct=True, prefetch=prefetch),
        *collective_options(batch, costs, prefetch=prefetch),
    ]
    return {(one.prefix, one.chunk, one.prefetch): one for one in every}


@settings(max_examples=300, deadline=None)
@given(batch=shapes(), costs=tables())
def test_the_least_cost_wins_and_more_ways_never_cost_more(batch: BatchShape, costs: CostTable) -> None:
    costs_of = [one.cost_us for one in peer_options(batch, costs, direct=True, prefetch=True)]
    best = choose(batch, costs, peers=True, direct=True, prefetch=True)
    assert best.cost_us == min(costs_of) > 0
    for direct, prefetch in ((False, True), (True, False), (False, False)):
        fewer = choose(batch, costs, peers=True, direct=direct, prefetch=prefetch)
        assert prefetch or not fewer.prefetch
        if direct is False:
            without = choose(batch, costs, peers=True, direct=False, prefetch=prefetch)
            assert without.cost_us >= choose(batch, costs, peers=True, direct=True, prefetch=prefetch).cost_us


@settings(max_examples=300, deadline=None)
@given(batch=shapes(), costs=tables(), more=st.integers(1, 2000))
def test_a_longer_prefix_costs_no_less_on_any_way(batch: BatchShape, costs: CostTable, more: int) -> None:
    page = PAGE_SIZE * GLM5_FP8.bytes * (batch.ranks - 1) / batch.ranks
    longer = batch._replace(
        prefix_pages=batch.prefix_pages + more,
        prefix_bytes=batch.prefix_bytes + more * page,
        tokens=batch.tokens + more * PAGE_SIZE,
    )
    after = options(longer, costs)
    for name, decision in options(batch, costs).items():
        # A copy of which more is left to the kernel loses more only if the kernel is no gentler.
        if name[0] is Path.COPY and costs.pull_share < costs.copy_share:
            continue
        assert after[name].cost_us >= decision.cost_us - 1e-6


@settings(max_examples=300, deadline=None)
@given(batch=shapes(), costs=tables())
def test_a_faster_way_costs_no_more(batch: BatchShape, costs: CostTable) -> None:
    before = options(batch, costs)
    for name in ("copy_gbps", "pull_gbps", "collective_gbps", "direct_gbps"):
        faster = dataclasses.replace(costs, **{name: 2 * getattr(costs, name)})
        mixed = name == "copy_gbps" and costs.copy_share < costs.pull_share
        for way_, decision in options(batch, faster).items():
            if not mixed or way_[0] is not Path.COPY:
                assert decision.cost_us <= before[way_].cost_us + 1e-6


@settings(max_examples=200, deadline=None)
@given(batch=shapes())
def test_fewer_rows_never_turn_away_from_reading_in_place(batch: BatchShape) -> None:
    if choose(batch, H200, peers=True, direct=True, prefetch=True).prefix is Path.DIRECT:
        for rows in range(1, batch.rows, 1 + batch.rows // 7):
            fewer = batch._replace(rows=rows)
            assert choose(fewer, H200, peers=True, direct=True, prefetch=True).prefix is Path.DIRECT
