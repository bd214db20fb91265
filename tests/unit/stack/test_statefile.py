"""The state file says where everything is, appears whole, and is checked when read."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest
from pydantic import ValidationError
from tests.unit.stack.test_plan import OPTIONS, PORTS

from plait.stack.child import ChildSpec
from plait.stack.plan import plan_stack
from plait.stack.statefile import describe, read_state, write_state


class _Running:
    """A started child as far as the state file looks at it."""

    def __init__(self, spec: ChildSpec, first: int) -> None:
        self.spec = spec
        self.pids = [first, first + 1]
        self.keeper = first - 1


def _state(**changes: object) -> object:
    plan = plan_stack(dataclasses.replace(OPTIONS, **changes), PORTS)  # type: ignore[arg-type]
    children = {spec.name: _Running(spec, 100 * number) for number, spec in enumerate(plan.children, 1)}
    return describe(plan, children)  # type: ignore[arg-type]


def test_everything_can_be_found_in_it(tmp_path: Path) -> None:
    write_state(tmp_path / "new" / "state.json", _state())  # type: ignore[arg-type]
    state = json.loads((tmp_path / "new" / "state.json").read_text())
    assert (state["cp"], state["layout"], state["split"]) == (4, "shared", "page-zigzag")
    assert state["supervisor"] == os.getpid()
    assert state["router"]["url"] == "http://127.0.0.1:1"
    assert (state["router"]["pid"], state["router"]["port"]) == (400, 1)
    (prefill,) = state["prefill"]
    assert (prefill["url"], prefill["bootstrap_port"]) == ("http://127.0.0.1:2", 3)
    assert prefill["pids"] == [100, 101]
    assert [decode["url"] for decode in state["decode"]] == ["http://127.0.0.1:4", "http://127.0.0.1:5"]
    assert [decode["log"] for decode in state["decode"]] == [
        "/runs/one/decode-0.log",
        "/runs/one/decode-1.log",
    ]


def test_what_is_written_is_read_and_nothing_else_is_left(tmp_path: Path) -> None:
    write_state(tmp_path / "state.json", _state())  # type: ignore[arg-type]
    assert read_state(tmp_path / "state.json") == _state()
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_a_pool_that_was_left_to_the_engine_is_null(tmp_path: Path) -> None:
    state = _state(max_total_tokens=None)
    write_state(tmp_path / "state.json", state)  # type: ignore[arg-type]
    assert json.loads((tmp_path / "state.json").read_text())["max_total_tokens"] is None
    assert read_state(tmp_path / "state.json") == state


def test_a_file_of_another_form_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text('{"router": {}}')
    with pytest.raises(ValidationError):
        read_state(path)
