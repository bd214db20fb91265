"""What the shared layout sets aside, and what that leaves of N times stock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.contract.capacity import (
    Aside,
    GatherBy,
    capacity_ratio,
    plan_memory,
    pool_bytes,
    set_aside,
    stock_tokens,
)
from plait.contract.layouts import Layout
from plait.contract.rows import RowBytes
from plait.contract.violation import ContractError
from plait.peer.arena import Segment, lay_out

GRANULE = 2 << 20
FP8 = RowBytes(mla=656, index=132)
BY = st.sampled_from(GatherBy)
OWNED = st.sampled_from([Layout.SHARED, Layout.REPLICATED])
RANKS = st.integers(1, 16)
LAYERS = st.integers(1, 80)
ROW = st.integers(1, 4000)


def aside(tokens: int, by: GatherBy, *, row: int = 788, layers: int = 3, ranks: int = 4) -> Aside:
    return set_aside(tokens, row=row, layers=layers, ranks=ranks, by=by)


def test_what_is_set_aside_by_hand() -> None:
    slot = (128 + 64) * 788  # two pages, and the one that padding lands on
    assert aside(128, GatherBy.PEER) == Aside(2 * slot, 0, 2 * GRANULE + 2 * 3 * 256)
    assert aside(128, GatherBy.COLLECTIVE) == Aside(2 * slot, slot + slot // 4, 0)
    assert aside(127, GatherBy.COLLECTIVE) == aside(128, GatherBy.COLLECTIVE)
    assert sum(aside(128, GatherBy.PEER)) == aside(128, GatherBy.PEER).total


@given(
    layers=st.lists(st.tuples(st.integers(1, 3000), st.sampled_from([656, 1152, 575])), max_size=40),
    ranks=RANKS,
)
def test_mapped_pools_lose_no_more_than_is_set_aside(layers: list[tuple[int, int]], ranks: int) -> None:
    """Segments of whole pages as `plait.peer` lays them out, and one more allocation for the barriers."""
    named = [
        Segment(f"{kind}.{at}", pages * 64 * row)
        for at, (pages, mla) in enumerate(layers)
        for kind, row in (("mla", mla), ("index", 132))
    ]
    made = lay_out(named, ranks=ranks, granularity=GRANULE, unit_bytes=[64 * 656, 64 * 132])
    lost = made.size - sum(segment.nbytes for segment in named) + GRANULE
    assert lost <= aside(0, GatherBy.PEER, layers=max(len(layers), 1), ranks=ranks).mapping


@pytest.mark.parametrize("by", list(GatherBy))
@pytest.mark.parametrize(("dtype", "row"), [("uint8", 656), ("bfloat16", 1152), ("float32", 2304)])
@pytest.mark.parametrize("pages", [1, 5])
def test_the_slots_are_those_that_the_gather_allocates(
    pages: int, dtype: str, row: int, by: GatherBy
) -> None:
    import torch

    from plait.gather import Scratch, ScratchShape

    kind: torch.dtype = getattr(torch, dtype)
    shapes = [
        ScratchShape(pages, (64, 1, row // kind.itemsize), kind),
        ScratchShape(pages, (1, 64 * 132), torch.uint8),
    ]
    made = sum(Scratch(shape, device=torch.device("cpu")).nbytes for shape in shapes)
    assert made == aside(pages * 64, by, row=row + 132).slots


@given(
    budget=st.integers(0, 10**10),
    more=st.integers(0, 10**9),
    ranks=RANKS,
    layers=LAYERS,
    layout=OWNED,
    by=BY,
)
def test_more_memory_never_holds_less(
    budget: int, more: int, ranks: int, layers: int, layout: Layout, by: GatherBy
) -> None:
    def tokens(of: int) -> int:
        try:
            plan = plan_memory(
                of,
                layout=layout,
                ranks=ranks,
                layers=layers,
                rows=FP8,
                context_length=2048,
                chunk=128,
                by=by,
            )
        except ContractError:
            return 0
        return plan.tokens

    assert tokens(budget) <= tokens(budget + more)


@given(
    budget=st.integers(0, 10**11), ranks=RANKS, layers=LAYERS, slot=st.integers(0, 300_000), by=BY, row=ROW
)
def test_the_ratio_is_a_share_of_n_times_stock(
    budget: int, ranks: int, layers: int, slot: int, by: GatherBy, row: int
) -> None:
    try:
        found = capacity_ratio(budget, ranks=ranks, layers=layers, row=row, scratch_tokens=slot, by=by)
    except ContractError:
        assert stock_tokens(budget, layers=layers, row=row) == 0
        return
    assert 0 <= found <= 1
    apart = aside(slot, by, row=row, layers=layers, ranks=ranks).total
    least = pool_bytes(ranks, ranks=ranks, layers=layers, row=row, layout=Layout.SHARED)
    assert (found > 0) == (budget >= apart + least)
    # Nothing is lost but what is set aside, the pad page, and less than a page that is left over.
    page = 64 * row * layers
    assert found >= (budget - apart - 2 * page) / max(budget - page, 1)


def test_the_ratio_by_hand() -> None:
    # Stock holds 100 pages of 3 layers beside the pad page. Three slots of two pages of one layer and a
    # quarter more are 2.2 pages of 3 layers: 98 are left, of which one is reserved.
    page = 64 * 788 * 3
    size = {"ranks": 4, "layers": 3, "row": 788}
    assert capacity_ratio(101 * page, scratch_tokens=64, by=GatherBy.COLLECTIVE, **size) == 97 / 100
    with pytest.raises(ContractError, match="memory budget"):
        capacity_ratio(2 * page - 1, scratch_tokens=64, by=GatherBy.PEER, **size)


def test_a_larger_slot_and_collectives_leave_less() -> None:
    def ratio(slot: int, by: GatherBy) -> float:
        return capacity_ratio(10**10, ranks=8, layers=78, row=788, scratch_tokens=slot, by=by)

    told = [
        ratio(131072, GatherBy.PEER),
        ratio(131072, GatherBy.COLLECTIVE),
        ratio(204800, GatherBy.COLLECTIVE),
    ]
    assert told == sorted(told, reverse=True)
    assert len(set(told)) == 3
