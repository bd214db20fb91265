"""`plait up` tells what its engines would refuse, each once, before anything starts."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from tests.unit.stack.test_plan import OPTIONS, PORTS

from plait.model.shape import TinyShape, config_json
from plait.stack import refusals as module
from plait.stack.plan import StackOptions, plan_stack
from plait.stack.refusals import refusals


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StackOptions:
    (tmp_path / "config.json").write_text(json.dumps(config_json(TinyShape())))
    monkeypatch.setattr(module, "engine_version", lambda: "0.5.17")
    return dataclasses.replace(OPTIONS, model=tmp_path, prefill_args=(), decode_args=())


def _fields(options: StackOptions, environ: dict[str, str] | None = None) -> list[str]:
    return [violation.field for violation in refusals(plan_stack(options, PORTS), environ or {})]


def test_a_sound_plan_is_not_refused(options: StackOptions) -> None:
    assert _fields(options) == []
    assert _fields(dataclasses.replace(options, layout="replicated", cp=2)) == []


def test_a_flag_that_one_side_refuses_is_named_with_its_side(options: StackOptions) -> None:
    (field,) = _fields(dataclasses.replace(options, prefill_args=("--enable-lora",)))
    assert field.startswith("prefill: ")
    assert "lora" in field


def test_what_all_children_refuse_is_told_once(options: StackOptions) -> None:
    assert _fields(options, {"PLAIT_LAYUOT": "shared"}) == ["prefill: PLAIT_LAYUOT"]


def test_another_engine_version_is_refused(options: StackOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "engine_version", lambda: "0.5.18")
    assert any("version" in field for field in _fields(options))


def test_the_router_is_not_held_to_the_engines_contract(options: StackOptions) -> None:
    plan = plan_stack(options, PORTS)
    assert refusals(plan._replace(children=plan.children[-1:]), {"PLAIT_NONSENSE": "1"}) == []
