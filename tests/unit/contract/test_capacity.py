import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.contract.capacity import (
    GatherBy,
    MemoryPlan,
    pages_for_bytes,
    pages_of_pool,
    physical_pages,
    plan_memory,
    pool_bytes,
    pool_unit,
    scratch_for,
    set_aside,
    tokens_for_bytes,
)
from plait.contract.layouts import Layout
from plait.contract.rows import RowBytes
from plait.contract.violation import ContractError

FP8 = RowBytes(mla=656, index=132)
BY = st.sampled_from(GatherBy)
OWNED = st.sampled_from([Layout.SHARED, Layout.REPLICATED])
RANKS = st.integers(1, 16)
LAYERS = st.integers(1, 80)
ROW = st.integers(1, 4000)


@given(ranks=RANKS, stripes=st.integers(1, 5000), layers=LAYERS, row=ROW, layout=OWNED)
def test_pages_and_bytes_are_inverse(ranks: int, stripes: int, layers: int, row: int, layout: Layout) -> None:
    pages = ranks * stripes
    size = {"ranks": ranks, "layers": layers, "row": row, "layout": layout}
    needed = pool_bytes(pages, **size)  # type: ignore[arg-type]
    assert pages_for_bytes(needed, **size) == pages  # type: ignore[arg-type]
    assert pages_for_bytes(needed - 1, **size) == pages - ranks  # type: ignore[arg-type]


@given(ranks=RANKS, budget=st.integers(-10, 10**12), layers=LAYERS, row=ROW, layout=OWNED)
def test_what_a_budget_holds_fits_it_and_one_stripe_more_does_not(
    ranks: int, budget: int, layers: int, row: int, layout: Layout
) -> None:
    size = {"ranks": ranks, "layers": layers, "row": row, "layout": layout}
    pages = pages_for_bytes(budget, **size)  # type: ignore[arg-type]
    assert pages >= 0
    assert pages % ranks == 0
    if pages:
        assert pool_bytes(pages, **size) <= budget  # type: ignore[arg-type]
    assert pool_bytes(pages + ranks, **size) > budget  # type: ignore[arg-type]


@given(ranks=st.integers(2, 16), layers=LAYERS, row=ROW, stripes=st.integers(1, 5000))
def test_shared_holds_at_least_ranks_times_the_replicated(
    ranks: int, layers: int, row: int, stripes: int
) -> None:
    budget = pool_bytes(ranks * stripes, ranks=ranks, layers=layers, row=row, layout=Layout.REPLICATED)
    shared = tokens_for_bytes(budget, ranks=ranks, layers=layers, row=row, layout=Layout.SHARED)
    assert shared >= ranks * stripes * ranks * 64


@given(ranks=RANKS, stripes=st.integers(1, 1000))
def test_each_owner_stores_one_page_per_stripe_and_the_reserved_one(ranks: int, stripes: int) -> None:
    pages = ranks * stripes
    assert physical_pages(pages, ranks=ranks, layout=Layout.SHARED) == stripes + 1
    assert physical_pages(pages, ranks=ranks, layout=Layout.REPLICATED) == pages + ranks


def test_one_rank_stores_the_same_in_both_layouts() -> None:
    assert physical_pages(7, ranks=1, layout=Layout.SHARED) == 8
    assert physical_pages(7, ranks=1, layout=Layout.REPLICATED) == 8


def test_the_shared_pool_of_the_real_shape_by_hand() -> None:
    # 2 layers, 4 ranks, 8 pages: 3 physical pages a rank, 64 rows of 788 bytes in each of 2 layers.
    assert pool_bytes(8, ranks=4, layers=2, row=788, layout=Layout.SHARED) == 3 * 64 * 788 * 2


@pytest.mark.parametrize(("tokens", "fix"), [(0, "256 or 512"), (300, "256 or 512"), (600, "512 or 768")])
def test_a_pool_is_whole_stripes(tokens: int, fix: str) -> None:
    assert pool_unit(4) == 256
    assert pages_of_pool(512, ranks=4) == 8
    with pytest.raises(ContractError) as caught:
        pages_of_pool(tokens, ranks=4, field="args.max_total_tokens")
    assert (caught.value.violations[0].field, caught.value.violations[0].fix) == (
        "args.max_total_tokens",
        fix,
    )
    with pytest.raises(ContractError, match="pages"):
        physical_pages(6, ranks=4, layout=Layout.SHARED)


def test_a_slot_holds_the_longest_request_and_a_chunk_of_others() -> None:
    assert scratch_for(context_length=2000, chunk=100) == 2048 + 128


def plan(
    budget: int = 10**9, layout: Layout = Layout.SHARED, by: GatherBy = GatherBy.PEER, **more: int
) -> MemoryPlan:
    sizes = {"ranks": 4, "layers": 3, "context_length": 2048, "chunk": 128, **more}
    return plan_memory(budget, layout=layout, rows=FP8, by=by, **sizes)


@given(
    budget=st.integers(0, 10**10),
    ranks=RANKS,
    layers=LAYERS,
    context=st.integers(1, 100_000),
    chunk=st.integers(1, 8192),
    layout=OWNED,
    by=BY,
)
def test_a_plan_fits_its_budget_and_one_request_its_scratch(
    budget: int, ranks: int, layers: int, context: int, chunk: int, layout: Layout, by: GatherBy
) -> None:
    sizes = {"ranks": ranks, "layers": layers, "context_length": context, "chunk": chunk}
    slot = scratch_for(context_length=context, chunk=chunk)
    aside = set_aside(slot, row=788, layers=layers, ranks=ranks, by=by).total
    least = pool_bytes(ranks, ranks=ranks, layers=layers, row=788, layout=layout)
    least += aside if layout is Layout.SHARED else 0
    try:
        made = plan_memory(budget, layout=layout, rows=FP8, by=by, **sizes)
    except ContractError:
        assert budget < least
        return
    assert least <= made.total_bytes <= budget
    one_more = (1 if layout is Layout.SHARED else ranks) * 64 * 788 * layers
    assert made.total_bytes + one_more > budget, "a stripe more would fit"
    assert made.tokens % (ranks * 64) == 0
    assert made.scratch_tokens >= context
    assert made.longest == min(context, made.tokens)
    assert made.pool_bytes == pool_bytes(made.pages, ranks=ranks, layers=layers, row=788, layout=layout)
    if layout is Layout.REPLICATED:
        assert made.tokens_replicated == made.tokens


def test_capacity_against_replicated_at_equal_bytes() -> None:
    made = plan()
    assert made.tokens >= 3.9 * made.tokens_replicated
    replicated = plan(budget=made.pool_bytes, layout=Layout.REPLICATED)
    assert replicated.aside.total == 0
    assert replicated.scratch_tokens == made.scratch_tokens
    assert replicated.tokens == made.tokens_replicated


def test_limits_of_a_plan() -> None:
    assert plan(max_tokens=1000).tokens == 768
    assert plan(max_tokens=1024).longest == 1024
    assert plan(scratch_tokens=2048).scratch_tokens == 2048


def test_too_little_scratch_or_memory_is_refused_with_a_fix() -> None:
    with pytest.raises(ContractError) as caught:
        plan(scratch_tokens=1984)
    assert caught.value.violations[0].field == "PLAIT_SCRATCH_TOKENS"
    assert "2048" in caught.value.violations[0].fix
    with pytest.raises(ContractError, match=r"memory budget.*the scratch"):
        plan(budget=1_000_000)
    with pytest.raises(ContractError) as caught:
        plan(budget=100_000, layout=Layout.REPLICATED)
    assert "scratch (" not in caught.value.violations[0].reason
    with pytest.raises(ContractError, match="memory budget"):
        plan(max_tokens=200)


def test_sizes_must_make_sense() -> None:
    with pytest.raises(ContractError) as caught:
        plan(ranks=0, chunk=-1)
    assert {v.field for v in caught.value.violations} == {"ranks", "chunk"}
