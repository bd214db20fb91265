"""Owners decide who computes what: shares, their order, and the way back, against a token-by-token truth."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.engine.batch import FakeBatch, random_batch
from tests.unit.engine.conftest import Place

from plait.contract.layouts import PAGE_SIZE, Layout
from plait.contract.setting_kinds import Fault
from plait.engine import state
from plait.gather import GatherPlan, GatherRequest

pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.timeout(600)]
CASES = 40


class Group:
    """All ranks of a group in one process: each rank's strategy with the batch's metadata."""

    def __init__(self, patch: pytest.MonkeyPatch, place: Place, ranks: int) -> None:
        from sglang.srt.layers.cp import padding
        from sglang.srt.model_executor import forward_context

        from plait.engine import strategy

        self.ranks, self._patch, self._place = ranks, patch, place
        self._module, self._context, self._padding = strategy, forward_context, padding
        self.current = 0
        patch.setattr(strategy.OwnerSplitStrategy, "cp_rank", property(lambda _: self.current))
        patch.setattr(padding, "get_cp_padding_align_size", lambda: ranks)
        patch.setattr(state, "pool", SimpleNamespace(scratch_tokens=64 * PAGE_SIZE, shared=True))

    def at(self, rank: int) -> None:
        self.current = rank
        self._place.at(rank, self.ranks)

    def split(self, batch: FakeBatch, rank: int) -> tuple[Any, Any]:
        """(strategy, forward batch with padded metadata) of `rank`, as the engine prepares them."""
        self.at(rank)
        pool = SimpleNamespace(req_to_token=batch.table())
        self._patch.setattr(self._context, "get_req_to_token_pool", lambda: pool)
        made, forward = self._module.OwnerSplitStrategy(self.ranks), batch.forward_batch()
        assert made.can_apply(batch.tokens_in_all, forward)
        forward.attn_cp_metadata = made.build_metadata(batch.tokens_in_all, batch.lengths, batch.extends)
        self._padding.pad_logical_token_to_physical(forward.attn_cp_metadata)
        return made, forward


@pytest.fixture(params=[2, 4], ids=["2 ranks", "4 ranks"])
def group(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, place: Place) -> Group:
    place.settings(layout=Layout.SHARED)
    return Group(monkeypatch, place, request.param)


def batches(ranks: int) -> list[FakeBatch]:
    rng = np.random.default_rng(ranks)
    one_token = FakeBatch([0], [1], [[ranks + 1]])
    return [one_token, *(random_batch(rng, ranks=ranks) for _ in range(CASES))]


def test_rows_positions_and_lists_are_the_own_tokens_padded_equally(group: Group) -> None:
    for batch in batches(group.ranks):
        truth = batch.tokens(group.ranks)
        x = torch.arange(1, len(truth) + 1, dtype=torch.float32)[:, None] * torch.ones(3)
        padded = set()
        for rank in range(group.ranks):
            made, forward = group.split(batch, rank)
            mine = [i for i, token in enumerate(truth) if token.owner == rank]
            rows = made.shard_hidden_states(x, forward)
            padded.add(len(rows))
            assert rows[: len(mine)].tolist() == x[mine].tolist()
            assert not rows[len(mine) :].any()
            positions = made.shard_position_ids(torch.arange(len(truth)), forward)
            assert positions[: len(mine)].tolist() == mine
            assert len(positions) == len(rows)
            assert made.shard_local_tokens(torch.arange(len(truth))).tolist() == mine
            assert made.shard_local_tokens([f"t{i}" for i in range(len(truth))]) == [f"t{i}" for i in mine]
        most = max(sum(token.owner == rank for token in truth) for rank in range(group.ranks))
        assert padded == {-(-most // group.ranks) * group.ranks}


def test_each_rank_is_told_its_requests_and_their_lengths(group: Group) -> None:
    for batch in batches(group.ranks):
        truth = batch.tokens(group.ranks)
        for rank in range(group.ranks):
            made, _ = group.split(batch, rank)
            extends = torch.tensor(batch.extends, dtype=torch.int32)
            on_host, on_device, chosen, chosen_device = made.shard_per_request(batch.extends, extends)
            counts = [
                sum(token.owner == rank and token.request == request for token in truth)
                for request in range(len(batch.extends))
            ]
            assert chosen == [i for i, count in enumerate(counts) if count]
            assert on_host == [count for count in counts if count]
            assert on_device.tolist() == on_host
            assert chosen_device.tolist() == chosen
            assert (on_device.dtype, chosen_device.dtype) == (torch.int32, torch.int32)


def test_gathered_rows_come_back_in_token_order_on_every_rank(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    from plait.engine import strategy

    for batch in batches(group.ranks):
        tokens = batch.tokens_in_all
        x = torch.arange(1, tokens + 1, dtype=torch.float32)[:, None] * torch.tensor([1.0, -1.0])
        sides = [group.split(batch, rank) for rank in range(group.ranks)]
        sent: list[torch.Tensor] = []

        def exchange(out: torch.Tensor, rows: torch.Tensor, sent: list[torch.Tensor] = sent) -> None:
            sent.append(rows)

        monkeypatch.setattr(strategy, "attn_cp_all_gather_into_tensor", exchange)
        local = []
        for rank, (made, forward) in enumerate(sides):
            group.at(rank)
            rows = made.shard_hidden_states(x, forward)
            own = len(forward.attn_cp_metadata.own_tokens)
            rows[own:] = 99.0  # what attention leaves in padded rows must not come along
            local.append(rows)
            made.gather_hidden_states(rows, forward)
        assert len(sent) == group.ranks, "every rank takes part, with rows or without"
        everything = torch.cat(sent)
        monkeypatch.setattr(
            strategy, "attn_cp_all_gather_into_tensor", lambda out, _, all=everything: out.copy_(all)
        )
        for rank, (made, forward) in enumerate(sides):
            group.at(rank)
            assert torch.equal(made.gather_hidden_states(local[rank], forward), x)
            assert torch.equal(made.gather_kv_cache(local[rank], forward), x)


def test_a_shared_rank_writes_its_own_rows_and_a_replicated_one_everything(
    group: Group, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batches(group.ranks)[3]
    made, forward = group.split(batch, 0)
    nope, rope, key = torch.ones(8, 1, 4), torch.ones(8, 1, 2), torch.ones(8, 3)
    kept = made.materialize_full_mla_kv(forward, None, nope, rope)
    assert kept[0] is nope
    assert kept[1] is rope
    assert made.materialize_full_indexer_k_cache(key, forward) is key

    place.settings(layout=Layout.REPLICATED)
    whole = torch.arange(30.0).view(5, 1, 6)
    monkeypatch.setattr(made, "_gather_interleaved_tensor", lambda x, _: whole)
    latent, position = made.materialize_full_mla_kv(forward, None, nope, rope)
    assert torch.equal(latent, whole[..., :4])
    assert torch.equal(position, whole[..., 4:])
    assert made.materialize_full_indexer_k_cache(key, forward) is whole


def test_the_split_and_the_dense_view_are_of_the_tables_pages(group: Group) -> None:
    for batch in batches(group.ranks)[:10]:
        _, forward = group.split(batch, 0)
        metadata = forward.attn_cp_metadata
        owners = [token.owner for token in batch.tokens(group.ranks)]
        assert metadata.split.token_owner.tolist() == owners
        assert metadata.gather.pages == sum(map(len, batch.pages))
        assert metadata.total_seq_lens == batch.tokens_in_all
        assert metadata.bs == len(batch.pages)
        assert metadata.padded == metadata.per_rank_actual_token[0] >= metadata.split.max_length


def test_the_negative_control_reads_two_pages_from_each_others_owner(group: Group, place: Place) -> None:
    first, second = group.ranks, group.ranks + 1
    place.settings(layout=Layout.SHARED, test_fault=Fault("swap-owners"))
    _, forward = group.split(FakeBatch([0], [65], [[first, second]]), 0)
    metadata = forward.attn_cp_metadata
    assert metadata.split.last_owner.tolist() == [1], "what is computed where stays right"
    right = GatherPlan.from_requests(
        [GatherRequest(0, 65, np.array([first, second]))], ranks=group.ranks, budget=2
    )
    assert metadata.gather.chunk.place.tolist() == [1, 0, *right.chunk.place.tolist()[2:]]


def test_load_is_counted(group: Group) -> None:
    batch = FakeBatch([0], [130], [[group.ranks, group.ranks * 2, group.ranks * 3]])  # all on rank 0
    made, _ = group.split(batch, 1)
    assert (made.stats.forwards, made.stats.tokens, made.stats.max_tokens) == (1, 130, 130)
    assert made.stats.mean_tokens == 130 / group.ranks


def test_only_context_parallel_batches_with_tokens_apply(group: Group) -> None:
    made, forward = group.split(FakeBatch([0], [1], [[group.ranks]]), 0)
    assert made.can_apply(1, forward)
    assert not made.can_apply(0, SimpleNamespace(forward_mode=forward.forward_mode, extend_seq_lens_cpu=[0]))
    decode = SimpleNamespace(is_context_parallel_extend=lambda: False)
    assert not made.can_apply(1, SimpleNamespace(forward_mode=decode, extend_seq_lens_cpu=[1]))


def test_a_batch_whose_lengths_contradict_is_refused(group: Group) -> None:
    batch = FakeBatch([64], [5], [[group.ranks, group.ranks + 1]])
    made, _ = group.split(batch, 0)
    with pytest.raises(ValueError, match="the batch has 6 tokens, its requests together 5"):
        made.build_metadata(6, batch.lengths, batch.extends)
    with pytest.raises(ValueError, match="lengths on the host"):
        made.build_metadata(5, None, None)


def test_a_batch_over_the_scratch_is_refused(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "pool", SimpleNamespace(scratch_tokens=PAGE_SIZE, shared=True))
    batch = FakeBatch([64], [5], [[group.ranks, group.ranks + 1]])
    with pytest.raises(ValueError, match="needs 2 dense pages, the scratch holds 1"):
        group.split(batch, 0)


class TestInstall:
    def test_it_stands_where_the_engine_put_interleave(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from sglang.srt.layers.cp import base
        from sglang.srt.layers.cp.interleave import InterleaveCPStrategy

        from plait.engine.strategy import OwnerSplitStrategy, install_strategy

        monkeypatch.setattr(base, "_STRATEGY", InterleaveCPStrategy(cp_size=4))
        install_strategy(None, None)
        first = base._STRATEGY
        assert isinstance(first, OwnerSplitStrategy)
        assert first is state.strategy
        assert (first.name, first.cp_size) == ("interleave", 4)
        install_strategy(None, None)
        assert base._STRATEGY is first

    def test_without_context_parallelism_there_is_nothing_to_do(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from sglang.srt.layers.cp import base

        from plait.engine.strategy import install_strategy

        monkeypatch.setattr(base, "_STRATEGY", None)
        install_strategy(None, None)
        assert base._STRATEGY is None

    def test_another_strategy_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from sglang.srt.layers.cp import base

        from plait.engine.strategy import install_strategy

        monkeypatch.setattr(base, "_STRATEGY", SimpleNamespace(name="zigzag", cp_size=2))
        with pytest.raises(ValueError, match=r"cp_strategy is 'zigzag'.*--cp-strategy interleave"):
            install_strategy(None, None)

    @pytest.mark.parametrize(
        ("extends", "ranks", "wanted"), [([1], 4, True), ([0], 4, False), ([9], 1, False), ([0, 1], 2, True)]
    )
    def test_the_gate_passes_any_batch_with_a_token(
        self, place: Place, monkeypatch: pytest.MonkeyPatch, extends: list[int], ranks: int, wanted: bool
    ) -> None:
        from sglang.srt.layers.attention.dsa import utils

        from plait.engine.strategy import can_split

        place.at(0, ranks)
        monkeypatch.setattr(utils, "is_dsa_prefill_cp_round_robin_split", lambda: True)
        mode = SimpleNamespace(is_context_parallel_extend=lambda: True)
        assert can_split(SimpleNamespace(forward_mode=mode, extend_seq_lens_cpu=extends)) is wanted
