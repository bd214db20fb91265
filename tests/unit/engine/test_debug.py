"""Records behind PLAIT_DEBUG_CHECKS, and the hold that makes batches known."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.unit.engine.conftest import Place

from plait.contract.layouts import PAGE_SIZE, Layout
from plait.engine import debug, state
from plait.layout import SplitPlan, SplitRequest


@pytest.fixture(autouse=True)
def recorded(place: Place, tmp_path: Path) -> None:
    place.settings(layout=Layout.SHARED, debug_checks=True, state_dir=tmp_path)


def test_batches_are_told_by_rank_0(place: Place, tmp_path: Path) -> None:
    split = SplitPlan.from_pages([SplitRequest(64, 65, np.array([2, 3, 5]))], ranks=2)
    for rank in (1, 0):
        place.at(rank, 2)
        debug.record_batch([64], [65], split)
    [line] = (tmp_path / "batches.jsonl").read_text().splitlines()
    told = {"prefix": [64], "extend": [65], "rows": [0, 65], "owners": [1] * 65}
    assert json.loads(line) == told


class TestHold:
    def scheduler(self, mode: str = "prefill") -> Any:
        return SimpleNamespace(
            disaggregation_mode=SimpleNamespace(value=mode),
            attn_cp_cpu_group="cp",
            waiting_queue=[SimpleNamespace(rid="b"), SimpleNamespace(rid="a")],
        )

    def agree(self, patch: pytest.MonkeyPatch, *, elsewhere: bool = False) -> list[int]:
        calls: list[int] = []

        def all_reduce(tensor: torch.Tensor, op: object, group: str) -> None:
            assert (op, group) == (dist.ReduceOp.MAX, "cp")
            calls.append(int(tensor))
            tensor.fill_(max(int(tensor), int(elsewhere)))

        patch.setattr(dist, "all_reduce", all_reduce)
        return calls

    def test_without_the_file_batches_are_formed_as_ever(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = self.agree(monkeypatch)
        assert debug.hold_batches(lambda *_: "batch", self.scheduler(), "running") == "batch"
        assert calls == [0]

    @pytest.mark.usefixtures("engine")
    @pytest.mark.timeout(600)
    @pytest.mark.parametrize("here", [True, False])
    def test_while_any_rank_sees_it_none_is_formed_and_the_queue_is_in_order(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, here: bool
    ) -> None:
        self.agree(monkeypatch, elsewhere=not here)
        if here:
            (tmp_path / "hold").touch()
        scheduler = self.scheduler()
        plan = debug.hold_batches(lambda *_: pytest.fail("a batch was formed"), scheduler, "running")
        assert (plan.batch_to_run, plan.running_batch) == (None, "running")
        assert [req.rid for req in scheduler.waiting_queue] == ["a", "b"]
        assert json.loads((tmp_path / "held.json").read_text()) == 2

    def test_other_engines_are_not_held(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "hold").touch()
        calls = self.agree(monkeypatch)
        assert debug.hold_batches(lambda *_: "batch", self.scheduler("decode"), "running") == "batch"
        assert calls == []

    def test_decode_begins_nothing_new_while_it_is_there(self, tmp_path: Path) -> None:
        assert debug.hold_decode(lambda *_: "batch", self.scheduler("decode"), "running") == "batch"
        (tmp_path / "hold").touch()
        assert debug.hold_decode(lambda *_: "batch", self.scheduler("decode"), "running") is None
        assert json.loads((tmp_path / "held.json").read_text()) == 2


class TestDigests:
    """A request of three pages and a bit, on two shared ranks and on one plain decode engine."""

    TOKENS = 2 * PAGE_SIZE + 10
    LOGICAL = (4, 7, 6)

    def pool(self, pages: int) -> Any:
        return SimpleNamespace(
            index_head_dim=128,
            kv_buffer=[torch.zeros(pages * PAGE_SIZE, 1, 4) for _ in range(2)],
            index_k_with_scale_buffer=[
                torch.zeros(pages, PAGE_SIZE * 132, dtype=torch.uint8) for _ in range(2)
            ],
        )

    def fill(self, pool: Any, page: int, position: int, *, beyond: int) -> None:
        """Bytes of the page at `position`, equal wherever it is stored; `beyond` in rows of no token."""
        rng = np.random.default_rng(position)
        rows = min(PAGE_SIZE, self.TOKENS - position * PAGE_SIZE)
        for mla, index in zip(pool.kv_buffer, pool.index_k_with_scale_buffer, strict=True):
            values = torch.from_numpy(rng.random((PAGE_SIZE, 1, 4), dtype=np.float32))
            values[rows:] = beyond
            mla[page * PAGE_SIZE : (page + 1) * PAGE_SIZE] = values
            packed = torch.from_numpy(rng.integers(0, 256, PAGE_SIZE * 132, dtype=np.uint8))
            packed[rows * 128 : PAGE_SIZE * 128] = beyond
            packed[PAGE_SIZE * 128 + rows * 4 :] = beyond
            index[page] = packed

    def scheduler(self, pool: Any, pages: tuple[int, ...]) -> Any:
        table = torch.zeros(2, 4 * PAGE_SIZE, dtype=torch.int32)
        for position, page in enumerate(pages):
            table[1, position * PAGE_SIZE : (position + 1) * PAGE_SIZE] = (
                torch.arange(PAGE_SIZE, dtype=torch.int32) + page * PAGE_SIZE
            )
        return SimpleNamespace(
            req_to_token_pool=SimpleNamespace(req_to_token=table),
            token_to_kv_pool_allocator=SimpleNamespace(get_kvcache=lambda: pool),
        )

    def request(self) -> Any:
        return SimpleNamespace(req_pool_idx=1, origin_input_ids=range(self.TOKENS), bootstrap_room=99)

    def prefill(self, patch: pytest.MonkeyPatch, place: Place, folder: Path) -> dict[str, str]:
        told: dict[str, str] = {}
        patch.setattr(state, "pool", SimpleNamespace(shared=True))
        for rank in range(2):
            place.at(rank, 2)
            pool = self.pool(5)
            for position, page in enumerate(self.LOGICAL):
                if page % 2 == rank:
                    self.fill(pool, page // 2, position, beyond=1)
            scheduler = self.scheduler(pool, self.LOGICAL)
            debug.record_sent_pages(None, scheduler, self.request(), last_chunk=False)
            assert not (folder / f"pages-prefill-{rank}-99.json").exists()
            debug.record_sent_pages(None, scheduler, self.request(), last_chunk=True)
            mine = json.loads((folder / f"pages-prefill-{rank}-99.json").read_text())
            assert not set(mine) & set(told)
            told |= mine
        return told

    def decode(self, patch: pytest.MonkeyPatch, place: Place, folder: Path, *, wrong: bool) -> dict[str, str]:
        patch.setattr(state, "pool", None)
        place.at(0, 1)
        pool = self.pool(6)
        for position, page in enumerate((5, 1, 3)):
            self.fill(pool, page, position, beyond=2)
        if wrong:
            pool.index_k_with_scale_buffer[1][1, PAGE_SIZE * 128] += 1
        scheduler = self.scheduler(pool, (5, 1, 3))
        queue = SimpleNamespace(scheduler=scheduler)
        debug.record_received_pages(None, queue, SimpleNamespace(req=self.request()))
        found: dict[str, str] = json.loads((folder / "pages-decode-0-99.json").read_text())
        return found

    def test_equal_pages_have_equal_digests_wherever_they_are_stored(
        self, monkeypatch: pytest.MonkeyPatch, place: Place, tmp_path: Path
    ) -> None:
        sent = self.prefill(monkeypatch, place, tmp_path)
        assert set(sent) == {"0", "1", "2"}
        assert len(set(sent.values())) == 3
        assert self.decode(monkeypatch, place, tmp_path, wrong=False) == sent

    def test_one_wrong_scale_byte_is_seen(
        self, monkeypatch: pytest.MonkeyPatch, place: Place, tmp_path: Path
    ) -> None:
        sent = self.prefill(monkeypatch, place, tmp_path)
        got = self.decode(monkeypatch, place, tmp_path, wrong=True)
        assert [position for position in sent if sent[position] != got[position]] == ["1"]


def test_without_a_folder_nothing_is_written(place: Place, tmp_path: Path) -> None:
    place.settings(debug_checks=True)
    debug.record_batch([0], [1], SplitPlan.from_pages([SplitRequest(0, 1, np.array([2]))], ranks=2))
    debug.record_sent_pages(None, None, SimpleNamespace(origin_input_ids=[1]), last_chunk=True)
    assert debug.hold_decode(lambda *_: "batch", None, None) == "batch"
    assert list(tmp_path.iterdir()) == []
