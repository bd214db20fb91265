"""The cases of stock_answers.json, which stock_capture.py writes from SGLang's own serving code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from plait.router.body import Route


class Case(NamedTuple):
    """One request: the answer of one engine to n samples, and to each of them alone."""

    name: str
    route: Route
    batch: int | None
    merged: Any
    singles: list[Any]


def cases(*, stream: bool) -> list[Case]:
    """The streamed cases (`merged` and each of `singles` is a list of payloads), or the others (strings)."""
    stored = json.loads(Path(__file__).with_name("stock_answers.json").read_text(encoding="utf-8"))
    return [
        Case(f"{case['route']} {i}", Route(case["route"]), case["batch"], case["merged"], case["singles"])
        for i, case in enumerate(stored)
        if bool(case["fields"].get("stream")) == stream
    ]
