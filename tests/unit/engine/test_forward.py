"""Where a forward writes and reads: own physical slots, and slots of the dense view."""

from __future__ import annotations

import dataclasses
import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.engine.batch import FakeBatch, random_batch
from tests.unit.engine.conftest import Place
from tests.unit.engine.test_strategy import Group

from plait.contract.layouts import PAGE_SIZE, Layout
from plait.engine import state
from plait.gather.peer_view import peer_rows
from plait.gather.policy import Decision, Path

pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.timeout(600)]
RANKS = 3


@dataclasses.dataclass(frozen=True)
class Tables:
    """The fields of the engine's attention metadata that change."""

    page_table_1: torch.Tensor
    real_page_table: torch.Tensor
    indexer_seq_lens_cpu: torch.Tensor
    page_table_1_flattened: torch.Tensor | None = None
    untouched: str = "as it was"


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch, place: Place) -> Group:
    place.settings(layout=Layout.SHARED, debug_checks=True)
    return Group(monkeypatch, place, RANKS)


def batches() -> list[FakeBatch]:
    rng = np.random.default_rng(11)
    return [FakeBatch([0], [1], [[RANKS]]), *(random_batch(rng, ranks=RANKS) for _ in range(40))]


def test_every_token_is_written_once_by_its_owner_and_padding_goes_to_the_dummy_slot(group: Group) -> None:
    from plait.engine.forward import own_slots

    for batch in batches():
        truth = batch.tokens(RANKS)
        for rank in range(RANKS):
            _, forward = group.split(batch, rank)
            metadata = forward.attn_cp_metadata
            slots = own_slots(forward.out_cache_loc, metadata)
            mine = [token.slot for token in truth if token.owner == rank]
            expected = [slot // PAGE_SIZE // RANKS * PAGE_SIZE + slot % PAGE_SIZE for slot in mine]
            assert slots.tolist() == expected + [0] * (metadata.padded - len(mine))
            assert slots.dtype == forward.out_cache_loc.dtype
            assert all(slot >= PAGE_SIZE for slot in expected), "a live token on the dummy page"


def test_the_check_sees_a_token_on_the_wrong_rank(group: Group) -> None:
    from plait.engine.forward import own_slots

    batch = FakeBatch([0], [65], [[RANKS, RANKS + 1]])
    _, forward = group.split(batch, 0)
    with pytest.raises(RuntimeError, match="does not own its page"):
        own_slots(forward.out_cache_loc + PAGE_SIZE, forward.attn_cp_metadata)


def tables_of(batch: FakeBatch, chosen: list[int]) -> Tables:
    """Stock metadata of a rank whose rows are of the requests `chosen`: tables of logical slots."""
    width = max(batch.lengths)
    wide = batch.table()[[1 + i for i in chosen], :width]
    return Tables(
        page_table_1=wide,
        real_page_table=wide[:, ::PAGE_SIZE] // PAGE_SIZE,
        indexer_seq_lens_cpu=torch.tensor([batch.lengths[i] for i in chosen], dtype=torch.int64),
    )


def test_tables_name_the_dense_slot_of_every_position(group: Group) -> None:
    from plait.engine.forward import dense_tables

    for batch in batches():
        truth = batch.tokens(RANKS)
        bases = np.cumsum([0, *map(len, batch.pages)])
        for rank in range(RANKS):
            _, forward = group.split(batch, rank)
            chosen = sorted({token.request for token in truth if token.owner == rank})
            stock = tables_of(batch, chosen)
            found = dense_tables(stock, forward.attn_cp_metadata)
            assert found.untouched == "as it was"
            for old, new in zip(dataclasses.astuple(stock)[:2], dataclasses.astuple(found)[:2], strict=True):
                assert new.dtype == old.dtype
                assert new.shape == old.shape
            for row, request in enumerate(chosen):
                length, first = batch.lengths[request], int(bases[request]) * PAGE_SIZE
                dense = list(range(first, first + length))
                assert found.page_table_1[row, :length].tolist() == dense
                pages = -(-length // PAGE_SIZE)
                assert found.real_page_table[row, :pages].tolist() == [
                    int(bases[request]) + page for page in range(pages)
                ]


PAGES_PER_RANK = 1000


def pool_that_reads(path: Path, begun: list[object] | None = None) -> SimpleNamespace:
    """A pool that takes `path` for every batch, and puts their plans into `begun`."""

    def begin(plan: object, *, rows: int) -> Decision:
        assert rows > 0
        if begun is not None:
            begun.append(plan)
        return Decision(path, path, False, 1.0)

    return SimpleNamespace(begin=begin, gather=SimpleNamespace(pages_per_rank=PAGES_PER_RANK))


class TestHook:
    def run(self, forward: Any, tables: Tables | None, pool: object) -> SimpleNamespace:
        from sglang.srt.layers.attention.dsa.dsa_topk_backend import TopkTransformMethod

        from plait.engine.forward import init_forward_metadata

        backend = SimpleNamespace(
            forward_metadata=None, get_topk_transform_method=lambda _: TopkTransformMethod.PAGED
        )

        def original(self: Any, batch: Any) -> None:
            assert batch is forward
            self.forward_metadata = tables

        init_forward_metadata(original, backend, forward)
        return backend

    def test_it_turns_slots_and_tables_and_begins_the_view_once(
        self, group: Group, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        batch = FakeBatch([64], [65], [[RANKS, RANKS + 1, RANKS + 2]])
        _, forward = group.split(batch, 1)
        begun: list[object] = []
        monkeypatch.setattr(state, "pool", pool_that_reads(Path.PULL, begun))
        logical = forward.out_cache_loc.clone()
        backend = self.run(forward, tables_of(batch, [0]), state.pool)
        assert begun == [forward.attn_cp_metadata.gather]
        assert len(forward.out_cache_loc) == forward.attn_cp_metadata.padded
        assert backend.forward_metadata.page_table_1[0].tolist() == list(range(129))
        once = forward.out_cache_loc.clone()
        self.run(forward, tables_of(batch, [0]), state.pool)
        assert torch.equal(forward.out_cache_loc, once), "physical slots are not turned twice"
        assert not torch.equal(once[: len(logical)], logical)

    def test_rows_that_are_read_in_place_have_a_table_of_their_own(
        self, group: Group, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Attention's: rows of all ranks' memory. The indexer's: pages of the dense view, as ever."""
        whole = state.pool
        for batch, rank in itertools.product(batches(), range(RANKS)):
            monkeypatch.setattr(state, "pool", whole)
            _, forward = group.split(batch, rank)
            chosen = sorted({token.request for token in batch.tokens(RANKS) if token.owner == rank})
            stock = tables_of(batch, chosen)
            monkeypatch.setattr(state, "pool", pool_that_reads(Path.PULL))
            dense = self.run(forward, stock, state.pool).forward_metadata
            monkeypatch.setattr(state, "pool", pool_that_reads(Path.DIRECT))
            found = self.run(forward, stock, state.pool).forward_metadata
            assert torch.equal(found.real_page_table, dense.real_page_table)
            assert found.page_table_1.dtype == stock.page_table_1.dtype
            for row, request in enumerate(chosen):
                slots = stock.page_table_1[row, : batch.lengths[request]].numpy().astype(np.int64)
                there = peer_rows(slots, ranks=RANKS, pages_per_rank=PAGES_PER_RANK)
                assert found.page_table_1[row, : len(slots)].tolist() == there.tolist()

    def test_a_table_of_other_requests_is_an_error(
        self, group: Group, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        batch = FakeBatch([0, 0], [65, 65], [[RANKS, RANKS + 1], [RANKS + 2, RANKS + 4]])
        _, forward = group.split(batch, 0)
        monkeypatch.setattr(state, "pool", pool_that_reads(Path.DIRECT))
        with pytest.raises(RuntimeError, match="page table of shape"):
            self.run(forward, tables_of(batch, [0, 1]), state.pool)

    @pytest.mark.parametrize("layout", [Layout.REPLICATED, Layout.SHARED])
    def test_other_batches_and_layouts_stay_stock(self, group: Group, place: Place, layout: Layout) -> None:
        batch = FakeBatch([0], [65], [[RANKS, RANKS + 1]])
        _, forward = group.split(batch, 0)
        if layout is Layout.SHARED:
            forward.attn_cp_metadata = None  # no context-parallel batch
        place.settings(layout=layout)
        logical, stock = forward.out_cache_loc, tables_of(batch, [0])
        backend = self.run(forward, stock, None)
        assert forward.out_cache_loc is logical
        assert backend.forward_metadata is stock

    def test_a_pool_that_is_not_plaits_is_an_error(
        self, group: Group, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        batch = FakeBatch([0], [5], [[RANKS]])
        _, forward = group.split(batch, 0)
        monkeypatch.setattr(state, "pool", None)
        with pytest.raises(RuntimeError, match="without Plait's class"):
            self.run(forward, tables_of(batch, [0]), None)
