"""The engine's sizing and the contract's plan are one: what operator and figures say is what starts."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
from tests.unit.engine.conftest import Place

from plait.contract.capacity import GatherBy, MemoryPlan, plan_memory
from plait.contract.layouts import PAGE_SIZE, Layout
from plait.contract.rows import RowBytes
from plait.contract.violation import ContractError

pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.timeout(600)]
FP8 = RowBytes(mla=656, index=132)
SLOT = 128 * 1024


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch, place: Place):
    """Tokens that the engine makes of some memory, through the stock method that the hook goes around."""
    from sglang.srt.model_executor.pool_configurator import DefaultPoolConfigurator

    from plait.engine import pool

    monkeypatch.setattr(pool, "scratch_tokens", lambda: SLOT)

    def made(budget: int, *, layout: Layout, ranks: int, layers: int, by: GatherBy) -> int:
        monkeypatch.setattr(pool, "peers_can_map", lambda device: by is GatherBy.PEER)
        place.at(0, ranks)
        place.settings(layout=layout, cpu=True)
        told = SimpleNamespace()
        told._cell_size = pool.cell_size(lambda *_: FP8.total * layers, told, None, layers)
        sizes = pool.pool_sizes(DefaultPoolConfigurator.calculate_pool_sizes, told, budget, PAGE_SIZE)
        return int(sizes.max_total_num_tokens)

    return made


def planned(budget: int, *, layout: Layout, ranks: int, layers: int, by: GatherBy) -> MemoryPlan | None:
    """The contract's plan; None where the memory is too little."""
    try:
        return plan_memory(
            budget,
            layout=layout,
            ranks=ranks,
            layers=layers,
            rows=FP8,
            context_length=SLOT,
            chunk=8192,
            by=by,
            scratch_tokens=SLOT,
        )
    except ContractError:
        return None


@pytest.mark.parametrize("by", list(GatherBy))
@pytest.mark.parametrize("layout", [Layout.SHARED, Layout.REPLICATED])
def test_the_engine_makes_of_its_memory_what_the_plan_says(tokens, layout: Layout, by: GatherBy) -> None:
    dice = random.Random(f"{layout} {by}")
    cases = [(24_514_641_526, 8, 78), (24_514_641_526, 4, 78)]  # GLM-5 on H200s
    cases += [
        (dice.randrange(10**7, 10**10), dice.choice((2, 4, 8)), dice.randrange(1, 81)) for _ in range(150)
    ]
    compared = 0
    for budget, ranks, layers in cases:
        plan = planned(budget, layout=layout, ranks=ranks, layers=layers, by=by)
        size = {"layout": layout, "ranks": ranks, "layers": layers, "by": by}
        if plan is None:
            with pytest.raises(RuntimeError, match="no memory is left"):
                tokens(budget, **size)
            continue
        if layout is Layout.SHARED and FP8.total * layers % ranks:
            # A token's share of a rank is rounded up to a byte: at most a stripe in so many is lost.
            found = tokens(budget, **size)
            lost = plan.tokens // (FP8.total * layers // ranks) + 2 * ranks * PAGE_SIZE
            assert plan.tokens - lost <= found <= plan.tokens
            continue
        assert tokens(budget, **size) == plan.tokens
        compared += 1
    assert compared > 30
