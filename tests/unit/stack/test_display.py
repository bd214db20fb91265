"""A start is shown live on a terminal, and line by line in a log."""

from __future__ import annotations

import io

from rich.console import Console

from plait.stack.child import ChildView
from plait.stack.display import LiveReport, PlainReport, report_to

LOADING = ChildView("prefill", "starting", "loading", 3.2, "[bold]Loading[/] shard 1")
READY = ChildView("prefill", "ready", "ready", 41.24, "fired up")


def test_a_log_gets_one_line_per_change() -> None:
    out = io.StringIO()
    with report_to(Console(file=out, width=100)) as report:
        assert isinstance(report, PlainReport)
        for child in (LOADING, LOADING, READY, READY):
            report.show([child])
    assert out.getvalue().splitlines() == ["prefill    starting", "prefill    ready after 41.2 s"]


def test_a_terminal_gets_a_table_with_the_last_line_as_it_is() -> None:
    out = io.StringIO()
    with report_to(Console(file=out, width=100, force_terminal=True)) as report:
        assert isinstance(report, LiveReport)
        report.show([LOADING])
        report.show([LOADING._replace(name="decode-0")])
    assert "[bold]Loading[/] shard 1" in out.getvalue()
    assert "3 s" in out.getvalue()
