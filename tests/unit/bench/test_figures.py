"""Medians, ratios and bounds, from made-up rounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench.router import figures
from bench.router.figures import FOUR, PLAIT, SGLANG, WORKING
from bench.router.prefix import Placement

_MEMORY = {PLAIT: {"peak": 70.0, "growth": 3.0}}


def _pass(cpu: float, *, peak: float = 60.0) -> dict[str, Any]:
    phases = ("requests 1 KB", "requests 200 KB", "chunks", "chunks paced")
    return {
        **{name: {"cpu_us": cpu} for name in phases},
        "first token": {"added_ms": {"median": 0.4, "p99": 1.0}},
        "memory_mb": {"largest_peak": peak},
    }


def test_ratios_are_of_medians_over_the_rounds() -> None:
    rounds = [{PLAIT: _pass(p), SGLANG: _pass(s)} for p, s in ((10, 40), (12, 50), (900, 60))]
    found = figures.headline(rounds, _MEMORY)
    assert found["cpu_chunk_ratio"] == pytest.approx(12 / 50)
    assert found["cpu_request_ratio"] == pytest.approx(12 / 50)


def test_the_worse_size_of_bodies_counts() -> None:
    plait, sglang = _pass(10), _pass(40)
    plait["requests 200 KB"] = {"cpu_us": 30.0}
    found = figures.headline([{PLAIT: plait, SGLANG: sglang}], _MEMORY)
    assert (found["cpu_request_ratio"], found["cpu_request_ratio_1kb"]) == (0.75, 0.25)


def test_four_processes_are_compared_with_one() -> None:
    found = figures.headline([{PLAIT: _pass(10), SGLANG: _pass(40), FOUR: _pass(12, peak=90)}], _MEMORY)
    assert found["four_workers_cpu_ratio"] == pytest.approx(1.2)
    assert found["rss_mb"] == 90


def test_what_was_not_measured_keeps_no_bound() -> None:
    found = figures.headline([{PLAIT: _pass(10), SGLANG: _pass(40)}], _MEMORY)
    kept = {b.name: b.kept for b in figures.bounds(found)}
    assert found["four_workers_cpu_ratio"] is None
    assert kept == {
        "cpu_request_ratio": True,
        "cpu_chunk_ratio": True,
        "cpu_chunk_paced_ratio": True,
        "ttft_added_ms": True,
        "rss_mb": True,
        "rss_growth_mb": True,
        "four_workers_cpu_ratio": False,
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [("cpu_request_ratio", 0.51), ("cpu_chunk_paced_ratio", 0.91), ("ttft_added_ms", 1.1), ("rss_mb", 80.1)],
)
def test_a_bound_that_is_missed_is_named(name: str, value: float) -> None:
    found = figures.headline([{PLAIT: _pass(10), SGLANG: _pass(40), FOUR: _pass(10)}], _MEMORY)
    missed = [b.name for b in figures.bounds({**found, name: value}) if not b.kept]
    assert missed == [name]


@pytest.mark.parametrize(("owner", "load", "kept"), [(0.9, 1.2, True), (0.5, 1.2, False), (0.9, 1.9, False)])
def test_placement_must_be_as_good_in_both(owner: float, load: float, kept: bool) -> None:
    theirs = Placement(0.5, 0.8, 1.5, 1.0, 1.0, 1.0, 1.0, 100)
    ours = theirs._replace(owner=owner, computed_worst_to_mean=load)
    assert figures.prefix_verdict({"chat": {PLAIT: ours, SGLANG: theirs, WORKING: theirs}}) == {
        f"chat, {SGLANG}": kept,
        f"chat, {WORKING}": kept,
    }


def test_another_cost_is_compared_with_the_median() -> None:
    rounds = [{PLAIT: _pass(cpu)} for cpu in (10, 12, 900)]
    found = figures.against(rounds, {"chunks": 24.0, "a phase that plait had not": 1.0})
    assert found == {"chunks": (24.0, 0.5)}


def test_the_report_replaces_the_last_one_whole(tmp_path: Path) -> None:
    path = tmp_path / "figures" / "router.json"
    figures.write(path, {"a": 1})
    figures.write(path, {"b": 2})
    assert json.loads(path.read_text()) == {"b": 2}
    assert [p.name for p in path.parent.iterdir()] == ["router.json"]
