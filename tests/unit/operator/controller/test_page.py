"""docs/operator.md names the flags and metrics that there are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer.main

from plait.telemetry.operator_metrics import CONTROLLER_METRICS
from plait_operator.command import app

PAGE = (Path(__file__).parents[4] / "docs" / "operator.md").read_text()


def test_every_flag_is_told_and_no_other() -> None:
    group: Any = typer.main.get_command(app)
    there = {o for p in group.commands["run"].params for o in p.opts} - {"--help"}
    rows = re.findall(r"^\| (`--.*?) \|", PAGE, re.MULTILINE)
    assert set(re.findall(r"--[a-z-]+", " ".join(rows))) == there


def test_every_metric_is_told_with_its_labels_and_no_other() -> None:
    rows = re.findall(r"^\| `(plait_operator_\w+)` \| ([^|]*)\|", PAGE, re.MULTILINE)
    told = {
        name: tuple(label.strip() for label in labels.split(",") if label.strip()) for name, labels in rows
    }
    there = {m.name if m.kind == "histogram" else m.sample_name: m.labels for m in CONTROLLER_METRICS}
    assert told == there
