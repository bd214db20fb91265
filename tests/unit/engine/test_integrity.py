"""Page accounting in a running engine: when it runs, what it says, and how it is asked."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.engine.conftest import Place

from plait.contract.layouts import Split
from plait.contract.settings import Settings
from plait.engine import holders, integrity, state
from plait.engine.integrity import IntegrityCheck
from plait.layout import Geometry, PageAllocator, PageDemand
from plait.pools import Holder


class Engine:
    """An allocator with some pages taken, all of them held by the tree."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        geometry = Geometry(ranks=2, pages=8)
        self.pages = PageAllocator(geometry, split=Split.PAGE_INTERLEAVE)
        self.tree = self.take(3)
        self.requests: list[Holder] = []
        patch.setattr(state, "allocator", SimpleNamespace(geometry=geometry, pages=self.pages))
        patch.setattr(integrity, "tree_pages", lambda _: self.tree)
        patch.setattr(integrity, "request_pages", lambda _: self.requests)
        self.check = IntegrityCheck(SimpleNamespace(tree_cache=None))

    def take(self, count: int) -> Any:
        return self.pages.take([PageDemand(count=count)])


@pytest.fixture
def engine_of_pages(monkeypatch: pytest.MonkeyPatch, place: Place) -> Engine:
    return Engine(monkeypatch)


def test_a_sound_engine_is_counted_and_silent(
    engine_of_pages: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    found = engine_of_pages.check.run()
    assert (found.free, found.tree, found.faults) == (5, 3, ())
    counts = engine_of_pages.check.counts()
    assert (counts.runs, counts.failures, counts.last_failure) == (1, 0, "")
    assert capsys.readouterr().out == ""


def test_a_lost_page_is_counted_printed_and_remembered(
    engine_of_pages: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    [lost] = engine_of_pages.take(1)
    found = engine_of_pages.check.run()
    said = f"pages {lost[0]} are neither free nor held by anyone"
    assert found.faults == (said,)
    assert engine_of_pages.check.counts().failures == 1
    assert engine_of_pages.check.counts().last_failure == said
    assert capsys.readouterr().out == f"plait: page accounting fault: {said}\n"
    engine_of_pages.requests = [Holder("a", lost)]
    assert engine_of_pages.check.run().faults == ()
    counts = engine_of_pages.check.counts()
    assert (counts.runs, counts.failures, counts.last_failure) == (2, 1, said)


def test_pages_that_are_not_plaits_are_not_accounted_for(
    engine_of_pages: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "allocator", None)
    with pytest.raises(RuntimeError, match="not Plait's"):
        engine_of_pages.check.run()
    engine_of_pages.check.run_when_idle()
    assert engine_of_pages.check.counts().runs == 0


class TestWhenIdle:
    def test_it_runs_when_pages_have_moved_and_else_now_and_then(
        self, engine_of_pages: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = [100.0]
        monkeypatch.setattr(time, "monotonic", lambda: now[0])
        check = engine_of_pages.check

        def runs() -> int:
            check.run_when_idle()
            return check.counts().runs

        assert runs() == 1
        assert runs() == 1, "nothing has moved"
        engine_of_pages.tree = [*engine_of_pages.tree, *engine_of_pages.take(1)]
        assert runs() == 1, "not right after the last one: a request may be waiting"
        now[0] += integrity._IDLE_AT_MOST_EVERY_S
        assert runs() == 2
        now[0] += integrity._IDLE_EVERY_S - 0.1
        assert runs() == 2
        now[0] += 0.2
        assert runs() == 3

    def test_it_can_be_off(self, engine_of_pages: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(state, "settings", Settings(integrity=False))
        engine_of_pages.check.run_when_idle()
        assert engine_of_pages.check.counts().runs == 0

    @pytest.mark.parametrize("idle", [True, False])
    def test_the_hook_runs_it_only_in_an_idle_scheduler(
        self, engine_of_pages: Engine, monkeypatch: pytest.MonkeyPatch, idle: bool
    ) -> None:
        scheduler = SimpleNamespace(is_fully_idle=lambda: idle)
        integrity.check_when_idle(scheduler)  # no check yet
        monkeypatch.setattr(state, "integrity", engine_of_pages.check)
        integrity.check_when_idle(scheduler)
        assert engine_of_pages.check.counts().runs == int(idle)


class TestOnDemand:
    def ask(self, folder: Path, ranks: int, answer: Any) -> dict[str, Any]:
        """The HTTP process's request, with `answer` as the engine's turn."""
        done = threading.Event()

        def engine() -> None:
            while not done.is_set():
                answer()
                time.sleep(0.01)

        thread = threading.Thread(target=engine)
        thread.start()
        try:
            return IntegrityCheck.request(folder, ranks=ranks)
        finally:
            done.set()
            thread.join()

    def test_every_rank_answers_from_its_scheduler(
        self, engine_of_pages: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        check = engine_of_pages.check
        monkeypatch.setattr(state, "integrity", check)
        others = {"rank": 1, "free": 5, "tree": 3, "requests": 0, "faults": []}

        def turn() -> None:
            check.poll_request(tmp_path)  # the status thread
            integrity.check_on_demand(SimpleNamespace(), [])  # the scheduler
            mine = tmp_path / "integrity-answer-0.json"
            if mine.exists():
                stamp = json.loads(mine.read_text())["stamp"]
                target = tmp_path / "integrity-answer-1.json"
                target.with_suffix(".tmp").write_text(json.dumps({"stamp": stamp, **others}))
                target.with_suffix(".tmp").replace(target)

        for times in (1, 2):
            outcome = self.ask(tmp_path, 2, turn)
            assert outcome["done"]
            assert [one["rank"] for one in outcome["ranks"]] == [0, 1]
            assert outcome["ranks"][0] == {**others, "rank": 0}
            assert check.counts().runs == times, "one run a request"

    def test_a_rank_that_does_not_answer_is_said_so_in_time(
        self, engine_of_pages: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(integrity, "_ANSWER_WITHIN_S", 0.3)
        outcome = self.ask(tmp_path, 2, lambda: None)
        assert outcome == {"done": False, "ranks": []}

    def test_answers_to_older_requests_do_not_count(
        self, engine_of_pages: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(integrity, "_ANSWER_WITHIN_S", 0.3)
        old = {"stamp": 1.0, "rank": 0, "free": 0, "tree": 0, "requests": 0, "faults": []}
        (tmp_path / "integrity-answer-0.json").write_text(json.dumps(old))
        assert self.ask(tmp_path, 1, lambda: None)["done"] is False

    @pytest.mark.parametrize("text", ["", "{", '{"stamp": "soon"}', "{}"])
    def test_a_request_that_cannot_be_read_is_left_alone(
        self, engine_of_pages: Engine, tmp_path: Path, text: str
    ) -> None:
        engine_of_pages.check.poll_request(tmp_path)
        (tmp_path / "integrity-request.json").write_text(text)
        engine_of_pages.check.poll_request(tmp_path)
        engine_of_pages.check.run_if_requested()
        assert engine_of_pages.check.counts().runs == 0

    def test_without_a_check_nothing_happens(self) -> None:
        integrity.check_on_demand(SimpleNamespace(), [])


def test_holders_are_the_engines() -> None:
    assert integrity.tree_pages is holders.tree_pages
    assert integrity.request_pages is holders.request_pages
