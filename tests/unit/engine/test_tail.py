"""The narrow tail gives what the full gather gives, to the last bit, and only where that is enough."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.engine.batch import FakeBatch, random_batch
from tests.unit.engine.conftest import Place
from tests.unit.engine.test_strategy import Group

from plait.contract.layouts import PAGE_SIZE, Layout
from plait.layout import SplitPlan, SplitRequest

pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.timeout(600)]
HIDDEN = 3


@pytest.fixture(params=[2, 4], ids=["2 ranks", "4 ranks"])
def group(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, place: Place) -> Group:
    place.settings(layout=Layout.SHARED)
    return Group(monkeypatch, place, request.param)


def batches(ranks: int) -> list[FakeBatch]:
    rng = np.random.default_rng(100 + ranks)
    one_token = FakeBatch([0], [1], [[ranks + 1]])
    one_rank = FakeBatch([0, 0, 0], [1, 64, 5], [[ranks], [2 * ranks], [3 * ranks]])
    many = FakeBatch([0] * 9, [1] * 9, [[ranks + i] for i in range(9)])
    return [one_token, one_rank, many, *(random_batch(rng, ranks=ranks) for _ in range(40))]


class Together:
    """All ranks of one batch, with a collective that joins what every rank gave."""

    def __init__(self, group: Group, batch: FakeBatch, patch: pytest.MonkeyPatch) -> None:
        from sglang.srt.layers import dp_attention

        from plait.engine import strategy

        self.group, self.batch = group, batch
        self.sides = [group.split(batch, rank) for rank in range(group.ranks)]
        self.given: list[torch.Tensor] = []
        self.joined: torch.Tensor | None = None

        def exchange(out: torch.Tensor, rows: torch.Tensor) -> None:
            if self.joined is None:
                self.given.append(rows.clone())
            else:
                assert out.shape == self.joined.shape
                out.copy_(self.joined)

        patch.setattr(dp_attention, "attn_cp_all_gather_into_tensor", exchange)
        patch.setattr(strategy, "attn_cp_all_gather_into_tensor", exchange)

    def each(self, work: Any) -> list[Any]:
        """`work(rank, strategy, forward batch)` on every rank; the collective's result is everybody's."""
        self.given, self.joined = [], None
        for rank, side in enumerate(self.sides):
            self.group.at(rank)
            work(rank, *side)
        assert len(self.given) == self.group.ranks, "every rank takes part, with last rows or without"
        assert len({rows.shape for rows in self.given}) == 1
        self.joined = torch.cat(self.given)
        found = []
        for rank, side in enumerate(self.sides):
            self.group.at(rank)
            found.append(work(rank, *side))
        return found


def rows_of(made: Any, forward: Any, x: torch.Tensor) -> torch.Tensor:
    """This rank's rows after the layers: its tokens' and, in the padded ones, rubbish."""
    rows: torch.Tensor = made.shard_hidden_states(x, forward).clone()
    rows[len(forward.attn_cp_metadata.own_tokens) :] = float("nan")
    return rows


def test_last_rows_are_those_of_the_full_gather_on_every_rank(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    from plait.engine.tail import Tail, TailPlan

    for batch in batches(group.ranks):
        x = torch.randn(batch.tokens_in_all, HIDDEN)
        together = Together(group, batch, monkeypatch)

        def narrow(rank: int, made: Any, forward: Any, x: torch.Tensor = x) -> torch.Tensor:
            plan = TailPlan.from_split(forward.attn_cp_metadata.split)
            tail = Tail(plan, rank=rank, device=torch.device("cpu"))
            return tail.collect(rows_of(made, forward, x))

        def full(rank: int, made: Any, forward: Any, x: torch.Tensor = x) -> torch.Tensor:
            return made.gather_hidden_states(rows_of(made, forward, x), forward)

        ends = torch.tensor(batch.extends).cumsum(0) - 1
        for last, every in zip(together.each(narrow), together.each(full), strict=True):
            assert torch.equal(last, every[ends])
            assert torch.equal(last, x[ends])


def test_a_rank_gives_no_more_rows_than_the_busiest_has_last_tokens() -> None:
    from plait.engine.tail import TailPlan

    pages = [[2], [4, 7], [6], [9]]  # last pages on ranks 0, 1, 0, 1 of 2
    extends = [3, 70, 64, 1]
    split = SplitPlan.from_pages(
        [SplitRequest(0, extend, np.array(one)) for extend, one in zip(extends, pages, strict=True)], ranks=2
    )
    plan = TailPlan.from_split(split)
    assert plan.block == 2
    # Rank 0 computes 3 tokens of the first, 64 of the second and 64 of the third; rank 1 computes 6 and 1.
    assert plan.rows.tolist() == [[2, 3 + 64 + 64 - 1], [5, 6]]
    assert plan.place.tolist() == [0, 2, 1, 3]


def forward_of(batch: FakeBatch, **other: Any) -> SimpleNamespace:
    from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode

    told: dict[str, Any] = {
        "spec_algorithm": None,
        "spec_info": None,
        "capture_hidden_mode": CaptureHiddenMode.NULL,
        "multi_item_delimiter_indices": None,
        "return_logprob": False,
        "extend_logprob_start_lens_cpu": list(batch.extends),
    }
    return SimpleNamespace(**vars(batch.forward_batch()), **(told | other))


def runner_of(**other: Any) -> SimpleNamespace:
    model = SimpleNamespace(
        logits_processor=SimpleNamespace(return_full_logits=other.pop("return_full_logits", False)),
        capture_aux_hidden_states=other.pop("capture_aux_hidden_states", False),
    )
    return SimpleNamespace(**({"model": model, "is_generation": True, "is_draft_worker": False} | other))


class TestChoice:
    batch = FakeBatch([0, 64], [5, 65], [[4], [5, 6, 7]])

    def decide(self, group: Group, runner: Any = None, **other: Any) -> bool:
        from plait.engine.tail import last_rows_suffice

        _, split = group.split(self.batch, 0)
        forward = forward_of(self.batch, **other)
        forward.attn_cp_metadata = split.attn_cp_metadata
        return last_rows_suffice(runner or runner_of(), forward)

    def test_an_ordinary_prefill_takes_it(self, group: Group) -> None:
        assert self.decide(group)

    def test_logprobs_of_the_answer_alone_take_it(self, group: Group) -> None:
        assert self.decide(group, return_logprob=True)

    @pytest.mark.parametrize("starts", [[0, 65], [5, 64], [4, 0]])
    def test_one_request_that_wants_logprobs_of_its_prompt_is_enough(
        self, group: Group, starts: list[int]
    ) -> None:
        assert not self.decide(group, return_logprob=True, extend_logprob_start_lens_cpu=starts)

    @pytest.mark.parametrize("mode", ["LAST", "FULL"])
    def test_captured_hidden_states(self, group: Group, mode: str) -> None:
        from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode

        assert not self.decide(group, capture_hidden_mode=CaptureHiddenMode[mode])

    def test_drafts(self, group: Group) -> None:
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

        assert self.decide(group, spec_algorithm=SpeculativeAlgorithm.NONE)
        assert not self.decide(group, spec_algorithm=SpeculativeAlgorithm.EAGLE)
        assert not self.decide(group, spec_info=object())

    def test_scoring(self, group: Group) -> None:
        assert not self.decide(group, multi_item_delimiter_indices=[torch.tensor([1])])

    @pytest.mark.parametrize(
        "other",
        [
            {"is_generation": False},
            {"is_draft_worker": True},
            {"return_full_logits": True},
            {"capture_aux_hidden_states": True},
        ],
        ids=str,
    )
    def test_models_that_read_more(self, group: Group, other: dict[str, bool]) -> None:
        assert not self.decide(group, runner_of(**other))

    def test_switched_off(self, group: Group, place: Place) -> None:
        place.settings(layout=Layout.SHARED, narrow_tail=False)
        assert not self.decide(group)

    def test_a_batch_that_is_not_split_by_owners(self) -> None:
        from plait.engine.tail import last_rows_suffice

        assert not last_rows_suffice(runner_of(), forward_of(self.batch))


class TestHooks:
    """The three hooks on one batch, around the engine's own logits processor."""

    def run(self, together: Together, x: torch.Tensor, *, runner: Any, **other: Any) -> list[Any]:
        """What the logits processor's pruning reads on each rank."""
        from sglang.srt.layers.logits_processor import LogitsProcessor
        from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode

        from plait.engine import tail

        batch = together.batch

        def original_logits(
            self: Any, ids: Any, hidden: torch.Tensor, head: Any, metadata: Any
        ) -> torch.Tensor:
            from sglang.srt.layers.logits_processor import LogitsMetadata

            if isinstance(metadata, ForwardBatch):
                metadata = LogitsMetadata.from_forward_batch(metadata)
            pruned, *_ = LogitsProcessor._get_pruned_states(None, hidden, None, None, metadata)
            return pruned

        def work(rank: int, made: Any, split: Any) -> torch.Tensor:
            forward = ForwardBatch.__new__(ForwardBatch)
            told = vars(forward_of(batch, **other)) | {
                "forward_mode": ForwardMode.EXTEND,
                "attn_cp_metadata": split.attn_cp_metadata,
                "extend_seq_lens": torch.tensor(batch.extends, dtype=torch.int32),
            }
            for name in (
                *("next_token_logits_buffer", "top_logprobs_nums", "token_ids_logprobs", "mm_input_embeds"),
                *("extend_input_logprob_token_ids_gpu", "is_prefill_only", "global_num_tokens_gpu"),
                *("dp_local_start_pos", "dp_local_num_tokens", "global_dp_buffer_len"),
                *("global_num_tokens_for_logprob_cpu", "global_num_tokens_for_logprob_gpu"),
            ):
                told[name] = None
            told |= {"top_logprobs_nums": [0], "token_ids_logprobs": [None]}
            vars(forward).update(told)
            forward.attn_cp_metadata.tail = None

            def model(self: Any, forward: Any, kwargs: Any) -> torch.Tensor:
                rows = tail.gather_after_forward(
                    lambda x, batch, stream=None: made.gather_hidden_states(x, batch),
                    rows_of(made, forward, x),
                    forward,
                )
                return tail.logits_of_last_rows(original_logits, None, None, rows, None, forward)

            return tail.choose_tail(model, SimpleNamespace(model_runner=runner), forward, {})

        return together.each(work)

    def test_the_logits_are_of_the_last_rows_either_way(
        self, group: Group, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for batch in batches(group.ranks)[:12]:
            x = torch.randn(batch.tokens_in_all, HIDDEN)
            together = Together(group, batch, monkeypatch)
            ends = torch.tensor(batch.extends).cumsum(0) - 1
            for runner in (runner_of(), runner_of(is_generation=False)):
                for found in self.run(together, x, runner=runner):
                    assert torch.equal(found, x[ends])
            sizes = [len(one.attn_cp_metadata.split.token_owner) for _, one in together.sides]
            assert sizes == [batch.tokens_in_all] * group.ranks

    def test_prompt_logprobs_come_from_the_full_gather(
        self, group: Group, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        batch = FakeBatch([0, 0], [5, 66], [[group.ranks], [group.ranks + 1, group.ranks + 2]])
        x = torch.randn(batch.tokens_in_all, HIDDEN)
        together = Together(group, batch, monkeypatch)
        asked = {"return_logprob": True, "extend_logprob_start_lens_cpu": [2, 66]}
        for found in self.run(together, x, runner=runner_of(), **asked):
            assert torch.equal(found, torch.cat([x[2:5], x[-1:]]))

    def test_rows_of_another_kind_are_not_taken_for_last_rows(self, group: Group) -> None:
        from plait.engine import tail

        _, forward = group.split(TestChoice.batch, 0)
        plan = tail.TailPlan.from_split(forward.attn_cp_metadata.split)
        forward.attn_cp_metadata.tail = tail.Tail(plan, rank=0, device=torch.device("cpu"))
        forward.attn_cp_metadata.tail.collected = True
        with pytest.raises(RuntimeError, match="70 rows for the logits of 2 requests"):
            tail.logits_of_last_rows(lambda *_: None, None, None, torch.zeros(70, 3), None, forward)
        with pytest.raises(RuntimeError, match="collected twice"):
            tail.gather_after_forward(lambda *_: None, torch.zeros(70, 3), forward)


class TestDebugChecks:
    def test_other_rows_than_the_full_gathers_stop_the_engine(self) -> None:
        from plait.engine.tail import _compare

        every = torch.tensor([[1.0, 2.0], [float("nan"), 0.0], [5.0, -0.0]])
        forward = SimpleNamespace(extend_seq_lens=torch.tensor([2, 1]))
        _compare(every[1:].clone(), every, forward)
        with pytest.raises(RuntimeError, match="other rows"):
            _compare(every[1:].abs(), every, forward)

    def test_the_choice_is_recorded(self, place: Place, tmp_path: Path) -> None:
        from plait.engine.tail import _record

        place.settings(layout=Layout.SHARED, debug_checks=True, state_dir=tmp_path)
        forward = SimpleNamespace(extend_seq_lens_cpu=[3, PAGE_SIZE])
        _record(forward, narrow=True)
        place.at(1, 2)
        _record(forward, narrow=True)
        [line] = (tmp_path / "forwards.jsonl").read_text().splitlines()
        assert json.loads(line) == {"narrow": True, "extend": [3, 64], "host_pages": [0, 0]}
