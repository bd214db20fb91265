"""Figures are measured or computed, and contradictions are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from plait.contract.capacity import pool_bytes
from plait.contract.layouts import Layout
from plait.stack import figures
from plait.stack.figures import FiguresError, Layouts, compare, read_figures, sent
from plait.stack.probe import Answer

LAYERS, ROW, RANKS, PAGES = 3, 788, 4, 64


def _bytes(layout: Layout) -> int:
    return pool_bytes(PAGES, ranks=RANKS, layers=LAYERS, row=ROW, layout=layout)


def _rank(rank: int) -> dict[str, Any]:
    held = _bytes(Layout.SHARED)
    return {
        "rank": rank,
        "pages": {"owned": PAGES // RANKS, "free": 6, "used": 10 + rank, "in_flight": 0},
        "bytes": {"mla": held - 1000, "index": 1000, "scratch": 777},
        "prefetch": {"hit": 5, "late": 1, "fallback": 0},
        "pid": 1,
    }


def _cache(**changes: Any) -> bytes:
    group = {
        "url": "http://p",
        "side": "prefill",
        "cp": RANKS,
        "capacity": {"tokens": PAGES * 64, "tokens_replicated": 960, "scratch_tokens": 128, "page_size": 64},
        "ranks": [_rank(rank) for rank in range(RANKS)],
        "ready": True,
    }
    decode = {"url": "http://d", "side": "decode", "cp": 1, "capacity": None, "ranks": []}
    return json.dumps({"workers": [decode, {**group, **changes}]}).encode()


def test_shared_is_measured_and_replicated_computed_for_the_same_pool() -> None:
    found = compare(_cache(), layers=LAYERS)
    assert found.bytes_for_pool == (_bytes(Layout.SHARED), _bytes(Layout.REPLICATED))
    assert found.tokens == (PAGES * 64, 960)
    assert found.pages == (PAGES // RANKS, PAGES)
    assert found.used_pages == [10, 11, 12, 13]
    assert found.scratch_bytes == 777
    assert (found.prefetch_hits, found.prefetch_late, found.prefetch_fallbacks) == (20, 4, 0)
    # One reserved page per rank against N of them: a little under, never over N.
    assert 3.9 < found.bytes_for_pool.ratio <= RANKS


def test_the_worst_rank_counts() -> None:
    ranks = [_rank(rank) for rank in range(RANKS)]
    ranks[2]["pages"]["owned"] = 40
    assert compare(_cache(ranks=ranks), layers=LAYERS).pages.shared == 40


def test_bytes_that_are_not_whole_pages_are_refused() -> None:
    ranks = [_rank(rank) for rank in range(RANKS)]
    ranks[0]["bytes"]["mla"] += 1
    with pytest.raises(FiguresError, match="are not 17 pages of 3 layers"):
        compare(_cache(ranks=ranks), layers=LAYERS)


@pytest.mark.parametrize("changes", [{"capacity": None}, {"ranks": []}, {"side": "decode"}, {"cp": None}])
def test_a_group_that_reports_nothing_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(FiguresError, match="no prefill group reports"):
        compare(_cache(**changes), layers=LAYERS)


def test_only_what_prefill_sent_is_listed() -> None:
    rank = {"rank": 1, "pages": 3, "bytes": 4, "seconds": 0.5, "failures": 0, "pairs": [], "age_s": 0.1}
    workers = [
        {"url": "p", "side": "prefill", "ranks": [rank]},
        {"url": "d", "side": "decode", "ranks": [{**rank, "pages": 99}]},
    ]
    assert [each.pages for each in sent(json.dumps({"workers": workers}).encode())] == [3]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Answer(0, b""), "answers nothing"),
        (Answer(500, b""), "answers 500"),
        (Answer(200, b"{"), "cannot be read"),
    ],
)
def test_a_router_without_figures_is_told(
    monkeypatch: pytest.MonkeyPatch, answer: Answer, message: str
) -> None:
    monkeypatch.setattr(figures, "ask", lambda _url, timeout_s: answer)
    with pytest.raises(FiguresError, match=message):
        read_figures("http://r", layers=LAYERS)


def test_a_ratio_says_how_much_better_shared_is() -> None:
    assert Layouts(shared=10, replicated=40).ratio == 4.0  # a cost
    assert Layouts(shared=40, replicated=10).ratio == 4.0  # a capacity
    assert Layouts(shared=0, replicated=0).ratio == 0.0
