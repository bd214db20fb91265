"""What sparse kernels are told, on every rank of a batch, through the engine's own metadata code."""

from __future__ import annotations

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
from plait.gather.policy import Decision, Path

pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.timeout(600)]
TOPK = 64
PULLED = Decision(Path.PULL, Path.PULL, False, 1.0)


@pytest.fixture(params=[2, 4], ids=["2 ranks", "4 ranks"])
def group(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, place: Place) -> Group:
    place.settings(layout=Layout.SHARED)
    return Group(monkeypatch, place, request.param)


def batches(ranks: int) -> list[FakeBatch]:
    rng = np.random.default_rng(200 + ranks)
    one_token = FakeBatch([0], [1], [[ranks + 1]])
    one_page_on_a_prefix = FakeBatch([128], [64], [[ranks, ranks + 1, 2 * ranks]])
    apart = FakeBatch([0, 0], [64, 64], [[ranks], [ranks + 1]])  # each request on a rank of its own
    return [one_token, one_page_on_a_prefix, apart, *(random_batch(rng, ranks=ranks) for _ in range(30))]


class Engine:
    """The engine's DSA backend of each rank, with as much around it as its metadata code asks for."""

    def __init__(self, group: Group, patch: pytest.MonkeyPatch, *, ragged: bool) -> None:
        from sglang.srt.layers.attention import dsa_backend

        self.group, self.patch, self.module, self.ragged = group, patch, dsa_backend, ragged
        patch.setattr(dsa_backend, "can_dsa_prefill_cp_round_robin_split", lambda _: True)
        patch.setattr(dsa_backend, "is_cp_v2_active", lambda _: True)
        patch.setattr(dsa_backend, "pad_dsa_cache_seqlens", lambda _, lengths: lengths)

    def rank(self, batch: FakeBatch, rank: int) -> tuple[Any, Any]:
        """(backend, forward batch) of `rank` before its metadata is made."""
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        made, split = self.group.split(batch, rank)
        self.patch.setattr(self.module, "get_cp_strategy", lambda: made)
        backend = self.module.DeepseekSparseAttnBackend.__new__(self.module.DeepseekSparseAttnBackend)
        told = {
            "device": torch.device("cpu"),
            "real_page_size": PAGE_SIZE,
            "req_to_token_pool": SimpleNamespace(req_to_token=batch.table()),
            "token_to_kv_pool": SimpleNamespace(dtype=torch.float8_e4m3fn, size=1 << 20, page_size=PAGE_SIZE),
            "dsa_index_topk": TOPK,
            "dsa_kv_cache_store_fp8": True,
            "dsa_prefill_impl": "flashmla_sparse" if self.ragged else "fa3",
            "dsa_decode_impl": "flashmla_kv",
            "use_mha": False,
            "speculative_num_draft_tokens": None,
            "_arange_buf": torch.arange(4096, dtype=torch.int32),
        }
        vars(backend).update(told)
        backend.set_dsa_prefill_impl = lambda _: None
        backend._build_topk_v2_plan = lambda _: None
        forward = SimpleNamespace(
            **{
                **vars(split),
                "forward_mode": ForwardMode.EXTEND,
                "batch_size": len(batch.lengths),
                "seq_lens_cpu": torch.tensor(batch.lengths),
                "seq_lens_sum": sum(batch.lengths),
                "extend_seq_lens": torch.tensor(batch.extends, dtype=torch.int32),
            }
        )
        return backend, forward

    def metadata(self, batch: FakeBatch, rank: int) -> Any:
        """The attention metadata of `rank`, through the hook."""
        from plait.engine.forward import init_forward_metadata

        backend, forward = self.rank(batch, rank)
        self.patch.setattr(
            state,
            "pool",
            SimpleNamespace(begin=lambda *_, **__: PULLED, scratch_tokens=64 * PAGE_SIZE, shared=True),
        )
        stock = self.module.DeepseekSparseAttnBackend.init_forward_metadata
        init_forward_metadata(stock, backend, forward)
        assert forward.extend_prefix_lens_cpu == batch.prefixes, "the batch is as it was"
        return backend.forward_metadata


class Rows:
    """The truth: the rows of a rank, each a (request, position), and where a position's slot is."""

    def __init__(self, batch: FakeBatch, rank: int, ranks: int, layout: Layout) -> None:
        self.batch, self.layout = batch, layout
        self.bases = np.cumsum([0, *map(len, batch.pages)])
        self.rows = [
            (request, position)
            for request, (prefix, length) in enumerate(zip(batch.prefixes, batch.lengths, strict=True))
            for position in range(prefix, length)
            if batch.pages[request][position // PAGE_SIZE] % ranks == rank
        ]
        self.chosen = sorted({request for request, _ in self.rows})

    def slots(self, request: int, positions: int) -> list[int]:
        """Slots of the first `positions` tokens: of the pool (replicated), or of the dense view."""
        if self.layout is Layout.SHARED:
            first = int(self.bases[request]) * PAGE_SIZE
            return list(range(first, first + positions))
        return self.batch.table()[request + 1, :positions].tolist()


@pytest.mark.parametrize("layout", [Layout.SHARED, Layout.REPLICATED])
class TestMetadata:
    def each(
        self, group: Group, place: Place, patch: pytest.MonkeyPatch, layout: Layout, *, ragged: bool
    ) -> Any:
        place.settings(layout=layout)
        engine = Engine(group, patch, ragged=ragged)
        for batch in batches(group.ranks):
            for rank in range(group.ranks):
                yield engine.metadata(batch, rank), Rows(batch, rank, group.ranks, layout)

    def test_a_flat_list_has_the_slot_of_every_position_that_a_row_may_select(
        self, group: Group, place: Place, monkeypatch: pytest.MonkeyPatch, layout: Layout
    ) -> None:
        empty = 0
        for found, truth in self.each(group, place, monkeypatch, layout, ragged=True):
            flat = found.page_table_1_flattened
            assert flat.dtype == torch.int32
            assert found.dsa_seqlens_expanded.tolist() == [position + 1 for _, position in truth.rows]
            if not truth.rows:
                empty += 1
                assert flat.tolist() == list(range(PAGE_SIZE)), "kernels are given rows, though none is read"
                assert len(found.topk_indices_offset) == 0
                continue
            for (request, position), offset in zip(
                truth.rows, found.topk_indices_offset.tolist(), strict=True
            ):
                reach = position + 1
                assert flat[offset : offset + reach].tolist() == truth.slots(request, reach)
            assert len(flat) == sum(truth.batch.lengths[request] for request in truth.chosen)
        assert empty > 5

    def test_key_ranges_follow_the_requests_that_the_rank_has_rows_of(
        self, group: Group, place: Place, monkeypatch: pytest.MonkeyPatch, layout: Layout
    ) -> None:
        for found, truth in self.each(group, place, monkeypatch, layout, ragged=True):
            starts = dict(
                zip(
                    truth.chosen,
                    np.cumsum([0, *(truth.batch.lengths[request] for request in truth.chosen)]),
                    strict=False,
                )
            )
            ks, ke = found.indexer_k_start_end
            assert ks.tolist() == [starts[request] for request, _ in truth.rows]
            assert ke.tolist() == [starts[request] + position + 1 for request, position in truth.rows]
            assert found.indexer_seq_lens_cpu.tolist() == [truth.batch.lengths[r] for r in truth.chosen]

    def test_a_paged_row_finds_its_requests_table(
        self, group: Group, place: Place, monkeypatch: pytest.MonkeyPatch, layout: Layout
    ) -> None:
        for found, truth in self.each(group, place, monkeypatch, layout, ragged=False):
            assert found.page_table_1_flattened is None
            ends = found.cu_seqlens_q.tolist()
            for row, ((request, position), index) in enumerate(
                zip(truth.rows, found.token_to_batch_idx.tolist(), strict=True)
            ):
                assert truth.chosen[index] == request
                assert ends[index] <= row < ends[index + 1]
                reach = position + 1
                assert found.page_table_1[index, :reach].tolist() == truth.slots(request, reach)
            assert len(found.real_page_table) == len(truth.chosen)


def test_stock_dies_on_a_rank_without_rows_of_a_batch_with_a_prefix(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why the list is made here. If this fails, look whether the hook is still needed."""
    engine = Engine(group, monkeypatch, ragged=True)
    backend, forward = engine.rank(FakeBatch([64], [1], [[group.ranks, group.ranks]]), 1)
    with pytest.raises(ValueError, match="non-empty"):
        engine.module.DeepseekSparseAttnBackend.init_forward_metadata(backend, forward)


class TestAttention:
    def run(self, *, flat: torch.Tensor | None, split: object, fails: bool = False) -> list[object]:
        from plait.engine.index_path import attend_over_flat_list

        seen: list[object] = []
        backend = SimpleNamespace(forward_metadata=SimpleNamespace(page_table_1_flattened=flat))
        forward = SimpleNamespace(extend_prefix_lens_cpu=[0, 0], attn_cp_metadata=split)

        def original(
            self: Any, q: Any, k: Any, v: Any, layer: Any, batch: Any, *rest: Any, **named: Any
        ) -> str:
            seen.extend([any(batch.extend_prefix_lens_cpu), rest, named])
            if fails:
                raise ValueError("in the kernel")
            return "out"

        if fails:
            with pytest.raises(ValueError, match="in the kernel"):
                attend_over_flat_list(original, backend, "q", "k", "v", "layer", forward)
        else:
            out = attend_over_flat_list(original, backend, "q", "k", "v", "layer", forward, True, k_rope="r")
            assert out == "out"
            assert seen[1:] == [(True,), {"k_rope": "r"}]
        assert forward.extend_prefix_lens_cpu == [0, 0]
        return seen[:1]

    def test_a_flat_list_is_taken_without_a_prefix_too(self) -> None:
        assert self.run(flat=torch.zeros(1), split=object()) == [True]
        assert self.run(flat=torch.zeros(1), split=object(), fails=True) == [True]

    def test_other_batches_stay_stock(self) -> None:
        assert self.run(flat=None, split=object()) == [False]
        assert self.run(flat=torch.zeros(1), split=None) == [False]


GIB = 1 << 30


class TestRows:
    @pytest.mark.parametrize("paged", [True, False])
    @pytest.mark.parametrize("budget", [1, 1000, GIB, 5 * GIB])
    def test_parts_are_within_the_budget_and_as_few_as_may_be(self, paged: bool, budget: int) -> None:
        from plait.engine.index_path import MOST_ROWS, rows_at_once

        dice = np.random.default_rng(1)
        for _ in range(300):
            rows, keys = int(2 ** dice.uniform(0, 18)), int(2 ** dice.uniform(0, 20))
            most = rows_at_once(rows, keys, budget=budget, paged=paged)
            assert 1 <= most <= min(rows, MOST_ROWS)
            if most == rows:
                assert rows * keys * 4 <= budget or rows == 1
                continue
            width = 8 if paged else 4
            assert most == 1 or most * keys * width <= budget
            parts = -(-rows // most)
            limit = max(1, min(MOST_ROWS, budget // (keys * width)))
            assert parts == -(-rows // limit)
            assert rows - (parts - 1) * most > most - parts, "parts are equal but for rounding"

    def test_a_million_keys_of_a_chunk_of_four_ranks(self) -> None:
        """2,048 rows x 1 M keys are 8 GiB of logits: on an H200 that keeps 15 % free, four parts or two."""
        from plait.engine.index_path import budget_of, rows_at_once

        budget = budget_of(139 * GIB, static=0.85, part=0.2)
        assert budget == pytest.approx(4.17 * GIB, rel=1e-3)
        assert rows_at_once(2048, 1 << 20, budget=budget, paged=True) == 512
        assert rows_at_once(2048, 1 << 20, budget=budget, paged=False) == 1024
        assert rows_at_once(2048, 1 << 17, budget=budget, paged=True) == 2048

    def test_more_rows_than_a_grid_has(self) -> None:
        from plait.engine.index_path import rows_at_once

        assert rows_at_once(65_535, 10, budget=GIB, paged=True) == 65_535
        assert rows_at_once(65_536, 10, budget=GIB, paged=True) == 32_768
        assert rows_at_once(200_000, 10, budget=GIB, paged=True) == 50_000

    def test_the_budget_never_exceeds_what_static_memory_leaves(self) -> None:
        from plait.engine.index_path import budget_of

        assert budget_of(100, static=0.9, part=1.0) == 9 or budget_of(100, static=0.9, part=1.0) == 10
        assert budget_of(100, static=0.0, part=1.0) == 30
        assert budget_of(100, static=1.0, part=0.2) == 1

    @pytest.mark.parametrize(("ragged", "rows"), [(True, 1024), (False, 512)])
    def test_the_engine_cuts_at_these_rows(
        self, monkeypatch: pytest.MonkeyPatch, ragged: bool, rows: int
    ) -> None:
        from sglang.srt.layers.attention.dsa.dsa_topk_backend import TopkTransformMethod
        from sglang.srt.model_executor import forward_context

        from plait.engine import index_path

        kind = TopkTransformMethod.RAGGED if ragged else TopkTransformMethod.PAGED
        backend = SimpleNamespace(get_topk_transform_method=lambda _: kind)
        monkeypatch.setattr(forward_context, "get_attn_backend", lambda: backend)
        monkeypatch.setattr(index_path, "logits_budget", lambda _: 4 * GIB)
        parts, bytes_at_once = index_path.should_chunk_logits(None, 2048, 1 << 20, 0)
        assert parts
        assert bytes_at_once // ((1 << 20) * 4) == rows, "how the engine gets its rows back"
        assert index_path.should_chunk_logits(None, 2048, 1000, 0) == (False, 2048 * 1000 * 4)
