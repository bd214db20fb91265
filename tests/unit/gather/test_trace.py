"""Ranges and notes around a gather's steps; nothing when off."""

from __future__ import annotations

import pytest
import torch
from tests.unit.gather.test_view import CPU, Bench, FakeExchange

from plait.gather import DenseView, GatherStats, trace_for


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", seen.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: seen.append("pop"))
    return seen


def test_off_is_no_trace_at_all() -> None:
    assert trace_for("mla", nvtx=False) is None


def test_ranges_are_closed_also_by_an_error(ranges: list[str]) -> None:
    trace = trace_for("mla", nvtx=True)
    assert trace is not None
    assert trace.around("consume", lambda layer: layer + 1)(3) == 4
    with pytest.raises(ZeroDivisionError):
        trace.around("prefix", lambda layer: 1 // layer)(0)
    assert ranges == ["plait.mla.consume 3", "pop", "plait.mla.prefix 0", "pop"]


def test_a_view_notes_each_step_once(ranges: list[str]) -> None:
    notes: list[str] = []
    bench = Bench(prefetch=True)
    view = DenseView(
        bench.sources,
        bench.scratch,
        ahead=FakeExchange([], "prefix", bench.sources),
        now=FakeExchange([], "chunk", bench.sources),
        prefetch=True,
        stats=GatherStats(),
        trace=trace_for("index", nvtx=True, note=notes.append),
    )
    view.begin(bench.plan, rank=0, device=CPU)
    for layer in (0, 0, 1):
        view.consume(layer)
    steps = ["prefix 0", "prefix 1", "consume 0", "prefix 2", "consume 1"]
    assert [note.split(":")[0] for note in notes] == [f"plait.index.{step}" for step in steps]
    assert all(note.endswith(" us of host time") for note in notes)
    opened = [name for name in ranges if name != "pop"]
    assert sorted(opened) == sorted(f"plait.index.{step}" for step in steps)
    assert ranges.count("pop") == len(opened)
