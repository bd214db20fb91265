"""The dense scratch is a budget: a batch is formed as far as it goes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.contract.layouts import PAGE_SIZE, Layout
from plait.contract.settings import Settings
from plait.engine import admission, state
from plait.gather import pages_needed


def waiting(prefix: int, extend: int) -> Any:
    """A request in the queue."""
    return SimpleNamespace(prefix_indices=range(prefix), full_untruncated_fill_ids=range(prefix + extend))


def taken(prefix: int, extend: int) -> Any:
    """A request that the batch has taken, in a chunk of `extend`."""
    return SimpleNamespace(
        prefix_indices=range(prefix), extend_range=SimpleNamespace(start=prefix, end=prefix + extend)
    )


def adder(*requests: Any, chunk_left: int | None = None) -> Any:
    return SimpleNamespace(can_run_list=list(requests), rem_chunk_tokens=chunk_left)


@pytest.fixture(autouse=True)
def scratch_of_eight_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "settings", Settings(layout=Layout.SHARED))
    monkeypatch.setattr(state, "pool", SimpleNamespace(scratch_tokens=8 * PAGE_SIZE))


def test_pages_taken_count_prefix_and_chunk_of_each_request() -> None:
    assert admission.pages_taken(adder()) == 0
    assert admission.pages_taken(adder(taken(64, 1), taken(0, 128))) == 2 + 2


def test_pages_wanted_are_those_of_the_chunk_that_would_be_given() -> None:
    assert admission.pages_wanted(adder(), waiting(128, 1000)) == pages_needed(128, 1000)
    assert admission.pages_wanted(adder(chunk_left=128), waiting(128, 1000)) == 4
    assert admission.pages_wanted(adder(chunk_left=500), waiting(128, 10)) == 3


@pytest.mark.parametrize("left", [0, -5, 10])
def test_a_used_up_chunk_still_counts_a_page(left: int) -> None:
    assert admission.pages_wanted(adder(chunk_left=left), waiting(64, 500)) == 2


def test_a_request_waits_exactly_if_it_does_not_fit_beside_the_others() -> None:
    batch = adder(taken(3 * 64, 64))
    assert not admission.over_budget(batch, waiting(3 * 64, 64))
    assert admission.over_budget(batch, waiting(3 * 64, 65))


def test_a_request_alone_is_always_taken() -> None:
    """It fits by the check at start; refusing it here would keep it waiting for ever."""
    assert not admission.over_budget(adder(), waiting(0, 100 * 64))


def test_without_plaits_pool_there_is_no_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    full = adder(taken(0, 8 * 64))
    assert admission.over_budget(full, waiting(0, 1))
    monkeypatch.setattr(state, "pool", None)
    assert not admission.over_budget(full, waiting(0, 1))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 400)), min_size=1, max_size=12))
def test_a_batch_formed_by_it_fits_the_scratch(queue: list[tuple[int, int]]) -> None:
    batch = adder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "settings", Settings(layout=Layout.SHARED))
        patch.setattr(state, "pool", SimpleNamespace(scratch_tokens=12 * PAGE_SIZE))
        for pages, extend in queue:
            if not admission.over_budget(batch, waiting(pages * 64, extend)):
                batch.can_run_list.append(taken(pages * 64, extend))
    assert admission.pages_taken(batch) <= 12


@pytest.mark.usefixtures("engine")
@pytest.mark.timeout(600)
class TestHooks:
    def test_the_adder_is_told_to_wait_or_asked_as_ever(self) -> None:
        from sglang.srt.managers.schedule_policy import AddReqResult

        full, one = adder(taken(0, 8 * 64)), waiting(0, 1)
        asked: list[Any] = []

        def original(*given: Any) -> str:
            asked.append(given)
            return "stock"

        assert admission.add_one_req(original, full, one, False, None) == AddReqResult.OTHER
        assert admission.add_one_req_ignore_eos(original, full, one) == AddReqResult.OTHER
        assert asked == []
        free = adder()
        assert admission.add_one_req(original, free, one, True, 8) == "stock"
        assert admission.add_one_req_ignore_eos(original, free, one) == "stock"
        assert asked == [(free, one, True, 8), (free, one)]

    def prompt(self, tokens: int, new: int = 4) -> Any:
        return SimpleNamespace(
            rid="r",
            origin_input_ids=range(tokens),
            sampling_params=SimpleNamespace(max_new_tokens=new),
            return_logprob=False,
            finished_reason=None,
        )

    def refused(self, hook: Any, side: Any, req: Any) -> bool:
        answered: list[Any] = []
        side.scheduler = SimpleNamespace(
            output_streamer=SimpleNamespace(stream_output=lambda reqs, _: answered.extend(reqs))
        )
        refused: bool = hook(lambda *_: False, side, req)
        assert answered == ([req] if refused else [])
        return refused

    def test_prefill_refuses_a_prompt_that_admission_would_never_take(self) -> None:
        side = SimpleNamespace(max_total_num_tokens=1024)
        assert not self.refused(admission.refuse_on_prefill, side, self.prompt(1024 - 66))
        req = self.prompt(1024 - 65)
        assert self.refused(admission.refuse_on_prefill, side, req)
        said = req.finished_reason.message
        assert req.finished_reason.status_code == 400
        assert "at most 958" in said
        assert "--max-total-tokens" in said

    def test_decode_counts_the_tokens_to_come_or_its_reserve(self) -> None:
        side = SimpleNamespace(max_total_num_tokens=1024, num_reserved_decode_tokens=512)
        assert not self.refused(admission.refuse_on_decode, side, self.prompt(512, new=4))
        assert self.refused(admission.refuse_on_decode, side, self.prompt(513, new=4))
        assert self.refused(admission.refuse_on_decode, side, self.prompt(424, new=601))

    def test_what_stock_refuses_stays_refused(self) -> None:
        side = SimpleNamespace(max_total_num_tokens=1024, scheduler=None)
        assert admission.refuse_on_prefill(lambda *_: True, side, self.prompt(1))
