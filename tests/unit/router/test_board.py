"""The board: one view of one process or of several."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.router.conftest import Lab, RunningRouter

from plait.router.errors import RouterError
from plait.router.report import Report
from plait.router.routes.health import readiness


async def test_one_process_reports_for_itself(router: RunningRouter) -> None:
    assert router.board.reports == []
    await router.board.refresh()
    [only] = router.board.reports
    assert (only.in_flight, only.pairs) == (0, 1)
    assert router.board.ended == []
    assert router.board.processes_without_pair == 0
    await router.board.settled()
    assert not router.board.draining


async def test_change_that_a_process_has_not_taken_up_is_told(
    router: RunningRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def settle() -> list[int]:
        return [4711]

    monkeypatch.setattr(router.board, "_settle", settle)
    with pytest.raises(RouterError) as caught:
        await router.board.settled()
    assert (caught.value.status, caught.value.code) == (503, "not_settled")
    assert "4711" in caught.value.message


async def test_reports_are_asked_for_with_each_refresh(
    router: RunningRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[list[Report]] = [[Report(pid=1, in_flight=1, queued=0)], []]

    async def ask() -> list[Report]:
        return rounds.pop(0)

    monkeypatch.setattr(router.board, "_ask", ask)
    await router.board.refresh()
    assert [r.pid for r in router.board.reports] == [1]
    await router.board.refresh()
    assert router.board.reports == []


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("draining", "the router is ending"),
        ("unsynced", "not known yet: the API server hangs"),
        ("processes", "1 of the router's processes have no pair yet"),
        ("pairs", "no prefill and decode engines with equal contracts"),
    ],
)
async def test_why_it_is_not_ready(lab: Lab, monkeypatch: pytest.MonkeyPatch, how: str, reason: str) -> None:
    router = await lab.router()
    assert readiness(router.board).ready
    if how == "draining":
        router.state.lifecycle.draining = True
    elif how == "unsynced":
        source: Any = router.board.source
        monkeypatch.setattr(source, "_handed_over", None)
        source.problem = "the API server hangs"
    elif how == "processes":
        monkeypatch.setattr(router.board, "_without_pair", lambda: 1)
    else:
        router.board.directory.drain(router.decode.url)
    found = readiness(router.board)
    assert not found.ready
    assert reason in found.reason
    async with router.http.get(router.admin_url + "/ready") as response:
        assert response.status == 503
        assert json.loads(await response.read())["reason"] == found.reason
