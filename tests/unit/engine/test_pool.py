"""The engine's pool: sizes and pointers of owned pages, reads through the dense view."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.engine.conftest import Place

from plait.contract.layouts import PAGE_SIZE, Layout
from plait.contract.setting_kinds import GatherPath, PeerAccess
from plait.engine import state
from plait.gather import GatherPlan, GatherRequest, page_rows

pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.timeout(600)]
LAYERS, LATENT, ROPE = 2, 512, 64
TOKENS = 8 * PAGE_SIZE


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, place: Place) -> Callable[..., Any]:
    """One rank's pool without a process group: its peers' parts never arrive (tests give them)."""
    from plait.engine import gathering, pool

    monkeypatch.setattr(gathering, "new_group", lambda: None)
    monkeypatch.setattr(gathering, "share_from_first", lambda table: table)
    monkeypatch.setattr(gathering, "CollectiveExchange", lambda group: OwnParts())
    monkeypatch.setattr(pool, "index_top_k", lambda: 64)
    monkeypatch.setattr(pool, "scratch_tokens", lambda: 4 * PAGE_SIZE)

    def build(
        layout: Layout,
        *,
        ranks: int = 2,
        size: int = TOKENS,
        dtype: torch.dtype = torch.bfloat16,
        **chosen: Any,
    ) -> Any:
        place.at(0, ranks)
        place.settings(layout=layout, prefetch=False, **{"peer_access": PeerAccess.OFF, **chosen})
        packed = 656 if dtype == torch.float8_e4m3fn else LATENT + ROPE
        return pool.OwnedPagePool(
            size=size,
            page_size=PAGE_SIZE,
            kv_lora_rank=LATENT,
            dtype=dtype,
            qk_rope_head_dim=ROPE,
            layer_num=LAYERS,
            device="cpu",
            index_head_dim=128,
            enable_memory_saver=False,
            kv_cache_dim=packed,
        )

    return build


class OwnParts:
    """An exchange that places the rank's own block only (rank 0's: the first)."""

    def prepare(self, part: Any) -> Any:
        send = torch.from_numpy(part.plan.send[part.rank])
        place = torch.from_numpy(part.plan.placed(part.trash))[: part.plan.block]

        def launch(source: torch.Tensor, target: torch.Tensor) -> Any:
            def wait() -> None:
                target[place] = source[send]

            return SimpleNamespace(done=lambda: False, wait=wait)

        return SimpleNamespace(launch=launch)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn])
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_shared_rank_stores_its_pages_and_one_more(
    make: Callable[..., Any], ranks: int, dtype: torch.dtype
) -> None:
    pool = make(Layout.SHARED, ranks=ranks, dtype=dtype)
    pages = 8 // ranks + 1
    assert pool.size == TOKENS, "what scheduler and transfer see stays logical"
    assert pool.physical_pages == pages
    row = 656 if dtype == torch.float8_e4m3fn else (LATENT + ROPE) * dtype.itemsize
    for mla, index in zip(pool.kv_buffer, pool.index_k_with_scale_buffer, strict=True):
        assert mla.nbytes == pages * PAGE_SIZE * row
        assert index.shape == (pages, PAGE_SIZE * 132)
    # What the transfer engine registers: item lengths are pages.
    _, lengths, items = pool.get_contiguous_buf_infos()
    assert lengths == [pages * PAGE_SIZE * row] * LAYERS
    assert items == [PAGE_SIZE * row] * LAYERS
    _, lengths, items = pool.get_state_buf_infos()
    assert (lengths, items) == ([pages * PAGE_SIZE * 132] * LAYERS, [PAGE_SIZE * 132] * LAYERS)
    assert pool.scratch_bytes == 2 * 5 * PAGE_SIZE * (row + 132)
    assert state.pool is pool


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_replicated_rank_stores_every_logical_page(make: Callable[..., Any], ranks: int) -> None:
    pool = make(Layout.REPLICATED, ranks=ranks)
    pages = 8 + ranks
    assert pool.size == TOKENS
    assert pool.physical_pages == pages
    assert pool.kv_buffer[0].shape == (pages * PAGE_SIZE, 1, LATENT + ROPE)
    assert pool.index_k_with_scale_buffer[0].shape == (pages, PAGE_SIZE * 132)
    assert pool.scratch_bytes == 0


def test_a_pool_of_broken_stripes_is_refused_with_the_next_size(make: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=r"max_total_num_tokens is 576.*2 ranks x 64 tokens; use 512"):
        make(Layout.SHARED, size=9 * PAGE_SIZE)


def test_reads_are_of_the_dense_view_and_writes_of_owned_pages(make: Callable[..., Any]) -> None:
    pool = make(Layout.SHARED)
    with pytest.raises(RuntimeError, match="outside a context-parallel prefill batch"):
        pool.get_key_buffer(0)
    # Rank 0 of 2 owns logical pages 4 and 6, physical 2 and 3, in the order 6, 4.
    plan = GatherPlan.from_requests(
        [GatherRequest(PAGE_SIZE, PAGE_SIZE, np.array([6, 4]))], ranks=2, budget=4
    )
    for layer in range(LAYERS):
        page_rows(pool.kv_buffer[layer], pool.physical_pages)[2] = 10 + layer
        page_rows(pool.kv_buffer[layer], pool.physical_pages)[3] = 20 + layer
        pool.index_k_with_scale_buffer[layer][2] = 30 + layer
        pool.index_k_with_scale_buffer[layer][3] = 40 + layer
    pool.begin(plan, rows=5)
    for layer in range(LAYERS):
        index = pool.get_broadcastable_index_k_with_scale_buffer(layer)
        assert index[:2, 0].tolist() == [40 + layer, 30 + layer]
        rows = pool.get_key_buffer(layer)
        assert rows.dtype == torch.bfloat16
        assert rows.shape == (5 * PAGE_SIZE, 1, LATENT + ROPE)
        assert page_rows(rows, 5)[:2, 0].tolist() == [20 + layer, 10 + layer]
        assert pool.get_key_buffer(layer) is rows
        assert pool.get_value_buffer(layer).shape == (5 * PAGE_SIZE, 1, LATENT)
        assert pool.get_index_k_with_scale_buffer(layer) is pool.index_k_with_scale_buffer[layer]
    # Two parts (prefix and chunk) of two kinds in each layer, none of them remote.
    # Without prefetch prefix and chunk come together: there is nothing to fall back from.
    assert (pool.gather_stats.fallback, pool.gather_stats.bytes) == (0, 0)
    assert dict(pool.gather.batches) == {"collective": 1}


def test_stock_index_accessors_read_the_dense_tensor_and_leave_the_pool_alone(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang.srt.mem_cache import memory_pool

    pool = make(Layout.SHARED)
    pool.begin(GatherPlan.from_requests([GatherRequest(0, 5, np.array([4]))], ranks=2, budget=4), rows=5)
    owned = pool.index_k_with_scale_buffer
    seen: list[Any] = []

    def execute(view: Any, buffer: torch.Tensor, **given: Any) -> str:
        assert pool.index_k_with_scale_buffer is owned, "another thread would read the wrong tensor"
        seen.append((view.page_size, buffer, given))
        return "read"

    for name in ("GetK", "GetS", "GetKAndS"):
        monkeypatch.setattr(getattr(memory_pool.index_buf_accessor, name), "execute", execute)
    assert pool.get_index_k_continuous(1, seq_len=5, page_indices="p") == "read"
    assert pool.get_index_k_scale_continuous(1, 5, "p") == "read"
    assert pool.get_index_k_scale_buffer(1, "s", "p", 5, 6) == "read"
    dense = pool.gather.consume("index", 1)
    assert [(size, buffer is dense) for size, buffer, _ in seen] == [(PAGE_SIZE, True)] * 3
    assert seen[0][2] == seen[1][2] == {"seq_len": 5, "page_indices": "p"}
    assert seen[2][2]["max_seq_len"] == 6


def test_a_replicated_rank_reads_its_own_pool(make: Callable[..., Any]) -> None:
    pool = make(Layout.REPLICATED)
    for layer in range(LAYERS):
        assert pool.get_key_buffer(layer) is pool.kv_buffer[layer]
        assert pool.get_value_buffer(layer).data_ptr() == pool.kv_buffer[layer].data_ptr()
        index = pool.index_k_with_scale_buffer[layer]
        assert pool.get_broadcastable_index_k_with_scale_buffer(layer) is index


def test_debug_checks_poison_the_scratch_before_each_batch(make: Callable[..., Any]) -> None:
    pool = make(Layout.SHARED, debug_checks=True)
    plan = GatherPlan.from_requests([GatherRequest(0, 5, np.array([4]))], ranks=2, budget=4)
    for _ in range(2):  # a batch that was not read to its end is ended first
        pool.begin(plan, rows=5)
        rows = pool.get_key_buffer(0)
        assert not rows[:PAGE_SIZE].isnan().any()
        assert rows[PAGE_SIZE : 4 * PAGE_SIZE].isnan().all()


def test_what_the_shared_layout_does_not_do_is_refused(make: Callable[..., Any]) -> None:
    pool, loc = make(Layout.SHARED), torch.tensor([1])
    for refused in (
        lambda: pool.move_kv_cache(loc, loc),
        lambda: pool.get_cpu_copy(loc),
        lambda: pool.load_cpu_copy(None, loc),
    ):
        with pytest.raises(NotImplementedError, match="the shared layout does not"):
            refused()


class TestSizes:
    @pytest.fixture
    def configurator(self) -> Any:
        return SimpleNamespace(_cell_size=50, plait_layer_bytes=25, plait_layers=2)

    def test_a_token_costs_a_rank_its_share(self, place: Place, configurator: Any) -> None:
        from plait.engine.pool import cell_size

        place.at(0, 4)
        place.settings(layout=Layout.SHARED)
        assert cell_size(lambda *_: 101, configurator, None, 2) == 26
        assert configurator.plait_layer_bytes == 50
        place.settings(layout=Layout.REPLICATED)
        assert cell_size(lambda *_: 101, configurator, None, 2) == 101

    @pytest.mark.parametrize("mapped", [True, False])
    def test_scratch_and_reserved_pages_are_set_aside(
        self, place: Place, configurator: Any, monkeypatch: pytest.MonkeyPatch, mapped: bool
    ) -> None:
        from plait.engine import pool

        monkeypatch.setattr(pool, "scratch_tokens", lambda: 640)
        monkeypatch.setattr(pool, "peers_can_map", lambda device: mapped)
        place.settings(layout=Layout.SHARED, cpu=True)
        seen: list[tuple[int, int]] = []

        def original(_: object, available: int, page: int) -> str:
            seen.append((available, page))
            return "sizes"

        # Two dense slots; beside them what collectives receive and this rank's half of what they pack, or
        # what mapped pools lose to whole granules.
        slot, reserved = (640 + 64) * 25, 50 * 128
        scratch = 2 * slot + ((4 << 20) + 2 * 2 * 256 if mapped else slot + slot // 2)
        assert pool.pool_sizes(original, configurator, 10_000_000, 64) == "sizes"
        assert seen == [(10_000_000 - scratch - reserved, 128)]
        with pytest.raises(RuntimeError, match=r"no memory is left for the KV pool.*PLAIT_SCRATCH_TOKENS"):
            pool.pool_sizes(original, configurator, scratch + 2 * reserved - 1, 64)
        place.settings(layout=Layout.REPLICATED)
        pool.pool_sizes(original, configurator, 1_000_000, 64)
        assert seen[1] == (1_000_000 - reserved, 128)

    def test_given_tokens_are_counted_in_stripes(self, place: Place) -> None:
        from plait.engine.pool import pool_sizes_from_tokens

        place.at(0, 4)
        assert pool_sizes_from_tokens(lambda _, tokens, unit: (tokens, unit), None, 5000, 64) == (5000, 256)

    def scratch(self, monkeypatch: pytest.MonkeyPatch, *, context: int, chunk: int) -> int:
        from sglang.srt import runtime_context

        from plait.engine.pool import scratch_tokens

        arguments = SimpleNamespace(
            get_model_config=lambda: SimpleNamespace(context_len=context), chunked_prefill_size=chunk
        )
        monkeypatch.setattr(runtime_context, "get_server_args", lambda: arguments)
        return scratch_tokens()

    def test_scratch_holds_the_longest_request_and_a_chunk_or_what_was_asked(
        self, monkeypatch: pytest.MonkeyPatch, place: Place
    ) -> None:
        place.settings(layout=Layout.SHARED)
        assert self.scratch(monkeypatch, context=1000, chunk=128) == 1024 + 128
        place.settings(layout=Layout.SHARED, scratch_tokens=1024)
        assert self.scratch(monkeypatch, context=1000, chunk=128) == 1024

    def test_scratch_below_one_request_ends_the_start(
        self, monkeypatch: pytest.MonkeyPatch, place: Place, capsys: pytest.CaptureFixture[str]
    ) -> None:
        place.settings(layout=Layout.SHARED, scratch_tokens=960)
        with pytest.raises(SystemExit):
            self.scratch(monkeypatch, context=1000, chunk=128)
        said = capsys.readouterr().err
        assert "PLAIT_SCRATCH_TOKENS = 960" in said
        assert "PLAIT_SCRATCH_TOKENS=1024 or more" in said


class TestWaysThatAreAskedFor:
    @pytest.mark.parametrize("way", [GatherPath.COPY, GatherPath.PULL, GatherPath.PEER_VIEW])
    def test_a_way_through_mapped_memory_without_it_ends_the_start(
        self, make: Callable[..., Any], capsys: pytest.CaptureFixture[str], way: GatherPath
    ) -> None:
        with pytest.raises(SystemExit):
            make(Layout.SHARED, gather_path=way)
        said = capsys.readouterr().err
        assert f"PLAIT_GATHER_PATH = {way.value}: the ranks of this group do not map" in said

    @pytest.mark.parametrize("more", [0, 1])
    def test_rows_beyond_int32_cannot_be_read_in_place(
        self, capsys: pytest.CaptureFixture[str], more: int
    ) -> None:
        from plait.engine.gathering import _OverPeers

        page = 64 * 656
        pages = 2**31 // 64 // 4 + more  # of each of 4 ranks
        spans = SimpleNamespace(stride=pages * page, page_bytes=page, ranks=4)
        over = SimpleNamespace(_spans={"mla": spans})
        if not more:
            assert _OverPeers._in_place(over) == pages  # type: ignore[arg-type]
            return
        with pytest.raises(SystemExit):
            _OverPeers._in_place(over)  # type: ignore[arg-type]
        said = capsys.readouterr().err
        assert "PLAIT_GATHER_PATH = peer-view: 4 ranks" in said
        assert "Fix: auto" in said
