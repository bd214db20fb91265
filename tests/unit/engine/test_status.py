"""Figures of a rank, left where others read them; and the routes that show them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fastapi import FastAPI
from fastapi.testclient import TestClient
from tests.unit.engine.conftest import Place

from plait.contract.layouts import PAGE_SIZE, Layout, Split
from plait.contract.status import STATUS_PATH, EngineStatus, RankStatus
from plait.engine import identity, state, status, transfer
from plait.engine.install import Applied
from plait.engine.integrity import IntegrityCheck
from plait.engine.targets import Kind, Target, When
from plait.gather import GatherStats
from plait.layout import Geometry, PageAllocator, PageDemand
from plait.transfer import TransferStats

BUFFER = torch.zeros(5, 64)  # 1280 bytes: 5 physical pages of 256, so rows of 4 bytes


class Rank:
    """A shared engine's rank 1 of 2, with three pages taken of which one request sends two."""

    def __init__(self, patch: pytest.MonkeyPatch, place: Place) -> None:
        place.at(1, 2)
        place.settings(layout=Layout.SHARED, split=Split.PAGE_ZIGZAG)
        geometry = Geometry(ranks=2, pages=8)
        pages = PageAllocator(geometry, split=Split.PAGE_INTERLEAVE)
        taken = pages.take([PageDemand(count=3)])
        assert taken is not None
        self.owned_by_rank_1 = int((taken[0] % 2 == 1).sum())
        table = torch.zeros(2, 256, dtype=torch.int32)
        table[1] = (
            torch.tensor([*taken[0], 2]).repeat_interleave(64) * PAGE_SIZE + torch.arange(64).repeat(4)
        ).int()
        sending = SimpleNamespace(rid="a", req_pool_idx=1, kv=SimpleNamespace(kv_allocated_len=3 * 64))
        released = SimpleNamespace(rid="b", req_pool_idx=None, kv=None)
        pool = SimpleNamespace(kv_buffer=[BUFFER, BUFFER], index_k_with_scale_buffer=[BUFFER])
        self.scheduler = SimpleNamespace(
            token_to_kv_pool_allocator=SimpleNamespace(
                size=512, get_kvcache=lambda: pool, available_size=lambda: 320
            ),
            req_to_token_pool=SimpleNamespace(req_to_token=table),
            disagg_prefill_inflight_queue=[sending, released],
            running_batch=SimpleNamespace(reqs=["x", "y"]),
            chunked_req="z",
            waiting_queue=["q"],
            disagg_prefill_bootstrap_queue=SimpleNamespace(queue=["r", "s"]),
            server_args=SimpleNamespace(
                disaggregation_mode="prefill", served_model_name="tiny", model_path="/m/tiny"
            ),
        )
        patch.setattr(state, "allocator", SimpleNamespace(geometry=geometry, pages=pages))
        patch.setattr(
            state,
            "pool",
            SimpleNamespace(
                scratch_bytes=77,
                scratch_tokens=640,
                gather_stats=GatherStats(
                    bytes=1, seconds=2.0, hit=3, late=4, fallback=5, runs=6, run_pages=7
                ),
                gather_batches={"copy": 2, "none": 1},
            ),
        )
        stats = SimpleNamespace(forwards=2, tokens=20, max_tokens=12, mean_tokens=10.0)
        patch.setattr(state, "strategy", SimpleNamespace(stats=stats))
        patch.setattr(state, "integrity", IntegrityCheck(self.scheduler))
        hook = Applied(Target("sglang.x.y", Kind.AFTER, None, When.ALWAYS, "why"), object(), object())
        patch.setattr(state, "hooks", [hook])
        patch.setattr(transfer, "stats", TransferStats())
        patch.setattr(identity, "wire_hash", lambda: "wire")
        wire = SimpleNamespace(layers=1, mla_row_bytes=8, index_row_bytes=4)
        patch.setattr(identity, "wire_contract", lambda: wire)
        patch.setattr(identity, "group_contract", lambda: SimpleNamespace(hash="group"))


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch, place: Place) -> Rank:
    return Rank(monkeypatch, place)


def test_a_shared_ranks_figures(rank: Rank, tmp_path: Path) -> None:
    transfer.stats.pages("d0", 3)
    transfer.stats.sent("d0", bytes=10, seconds=0.5, failed=False)
    transfer.stats.sent("d1", bytes=10, seconds=0.5, failed=True)
    told = status.StatusWriter(rank.scheduler, tmp_path).rank_status()
    used = rank.owned_by_rank_1
    assert told.rank == 1
    assert told.pages.model_dump() == {"owned": 4, "free": 4 - used, "used": used, "in_flight": used}
    assert told.bytes.model_dump() == {"mla": 2560, "index": 1280, "scratch": 77}
    seen = {"bytes": 1, "seconds": 2.0, "hit": 3, "late": 4, "fallback": 5}
    assert told.gather.model_dump().items() >= seen.items()
    assert told.gather.batches == {"copy": 2, "none": 1}
    assert (told.gather.runs, told.gather.run_pages) == (6, 7)
    assert (told.transfer.pages, told.transfer.bytes, told.transfer.failures) == (3, 10, 1)
    assert [pair.peer for pair in told.transfer.pairs] == ["d0", "d1"]
    assert (told.split.forwards, told.split.tokens, told.split.off_lane_pages) == (2, 20, 0)
    assert (told.running, told.queued) == (3, 3)


def test_an_engine_on_stock_pages(rank: Rank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("allocator", "pool", "strategy", "integrity"):
        monkeypatch.setattr(state, name, None)
    rank.scheduler.disagg_prefill_inflight_queue = None
    told = status.StatusWriter(rank.scheduler, tmp_path).rank_status()
    assert told.pages.model_dump() == {"owned": 8, "free": 5, "used": 3, "in_flight": 0}
    assert told.bytes.scratch == 0
    assert told.gather.bytes == told.split.forwards == told.integrity.runs == 0


@pytest.mark.parametrize(("layout", "replicated"), [(Layout.SHARED, 128), (Layout.REPLICATED, 512)])
def test_what_the_ranks_have_in_common(
    rank: Rank, place: Place, tmp_path: Path, layout: Layout, replicated: int
) -> None:
    place.settings(layout=layout, split=Split.PAGE_ZIGZAG)
    told = EngineStatus.model_validate(status.StatusWriter(rank.scheduler, tmp_path).engine_status())
    assert (told.role, told.layout, told.split, told.cp) == ("prefill", layout.value, "page-zigzag", 2)
    assert (told.model, told.wire_hash, told.group_hash) == ("tiny", "wire", "group")
    # Shared: the bytes of 5 pages hold two stripes of 2 logical pages, and one of them is reserved.
    assert (told.capacity.tokens, told.capacity.tokens_replicated) == (512, replicated)
    assert told.capacity.scratch_tokens == 640
    assert [hook.model_dump() for hook in told.hooks] == [
        {"target": "sglang.x.y", "kind": "after", "state": "applied"}
    ]


def test_a_written_rank_is_read_back_with_its_age(rank: Rank, place: Place, tmp_path: Path) -> None:
    assert status.read(tmp_path, ranks=2) is None
    for number in (0, 1):
        place.at(number, 2)
        status.StatusWriter(rank.scheduler, tmp_path).write()
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["rank-0.json", "rank-1.json"]
    found = status.read(tmp_path, ranks=2)
    assert found is not None
    assert [one.rank for one in found.ranks] == [0, 1]
    assert all(0 <= one.age_s < 60 for one in found.ranks)
    told = json.loads((tmp_path / "rank-1.json").read_text())
    told["rank"]["updated_at"] = time.time() - 500
    (tmp_path / "rank-1.json").write_text(json.dumps(told))
    found = status.read(tmp_path, ranks=2)
    assert found is not None
    assert found.ranks[1].age_s >= 500


@pytest.mark.parametrize("text", ["", "{", "{}", '{"rank": {}, "engine": {}}'])
def test_a_file_that_says_nothing_is_an_engine_that_starts(rank: Rank, tmp_path: Path, text: str) -> None:
    status.rank_file(tmp_path, 0).write_text(text)
    assert status.read(tmp_path, ranks=1) is None


def test_a_new_engine_forgets_the_old_ones_files(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "state"
    status.clear(folder)
    for name in ("rank-0.json", "rank-3.12.tmp", "integrity-answer-0.json", "integrity-request.json", "hold"):
        (folder / name).write_text("old")
    status.clear(folder)
    assert [path.name for path in folder.iterdir()] == ["hold"]


def test_a_status_that_cannot_be_written_is_said_and_tried_again(
    rank: Rank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = status.StatusWriter(rank.scheduler, tmp_path / "gone")
    naps: list[float] = []

    class EnoughError(Exception): ...

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 2:
            raise EnoughError

    monkeypatch.setattr(time, "sleep", sleep)
    with pytest.raises(EnoughError):
        writer.run()
    assert capsys.readouterr().out.count("plait: rank status failed: FileNotFoundError") == 2
    assert naps == [state.settings.status_interval_s] * 2


class TestRoutes:
    @pytest.fixture
    def client(self, tmp_path: Path) -> TestClient:
        app = FastAPI()
        status.add_routes(app, folder=tmp_path, ranks=1)
        return TestClient(app)

    def test_an_engine_that_starts_says_so(self, client: TestClient) -> None:
        answer = client.get(STATUS_PATH)
        assert answer.status_code == 503
        assert "starting" in answer.json()["error"]

    def test_the_status_is_the_contracts(
        self, rank: Rank, place: Place, client: TestClient, tmp_path: Path
    ) -> None:
        place.at(0, 1)
        status.StatusWriter(rank.scheduler, tmp_path).write()
        answer = client.get(STATUS_PATH)
        assert answer.status_code == 200
        found = EngineStatus.model_validate(answer.json())
        assert isinstance(found.ranks[0], RankStatus)

    @pytest.mark.parametrize(("done", "code"), [(True, 200), (False, 504)])
    def test_integrity_is_asked_of_the_ranks(
        self, client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: bool, code: int
    ) -> None:
        def request(folder: Path, *, ranks: int) -> dict[str, Any]:
            assert (folder, ranks) == (tmp_path, 1)
            return {"done": done, "ranks": []}

        monkeypatch.setattr(IntegrityCheck, "request", staticmethod(request))
        answer = client.post(status.INTEGRITY_PATH)
        assert (answer.status_code, answer.json()["done"]) == (code, done)
