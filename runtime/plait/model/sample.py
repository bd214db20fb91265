"""The text that ships with the package."""

from __future__ import annotations

from importlib import resources


def sample_text() -> str:
    """A short history of braiding, some thousand tokens: tokenizers learn from it, the demo asks about it."""
    return resources.files("plait.model").joinpath("braids.txt").read_text(encoding="utf-8")
