"""The tiny model, written by the command that users have."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from plait.cli import app


def make_model(folder: Path, *, topk: int) -> Path:
    """`folder` with a model in the GLM-5 shape, whose index selects `topk` tokens."""
    result = CliRunner().invoke(app, ["model", "tiny", str(folder), "--topk", str(topk)])
    assert result.exit_code == 0, result.output
    return folder
