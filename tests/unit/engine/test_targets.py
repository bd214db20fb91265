"""The table of hooks, against the engine that is installed and against the code that is there."""

from __future__ import annotations

import importlib
import importlib.metadata

import pytest

from plait.contract.layouts import Layout
from plait.engine import install
from plait.engine.targets import ENGINE_VERSION, TARGETS, Kind, Target, When

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def rooms(engine: None) -> None:
    for room in (*install._ROOMS, *install._CPU_ROOMS):
        importlib.import_module(room)


@pytest.mark.usefixtures("rooms")
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.path.removeprefix("sglang.srt."))
def test_a_target_stands_in_the_engine_with_this_signature_and_has_a_hook(target: Target) -> None:
    assert install.signature_fault(target) is None
    assert target.path in install.IMPLEMENTATIONS


@pytest.mark.usefixtures("rooms")
def test_every_hook_has_a_target() -> None:
    assert set(install.IMPLEMENTATIONS) == {target.path for target in TARGETS}


def test_the_table_is_for_the_engine_that_is_installed() -> None:
    assert importlib.metadata.version("sglang") == ENGINE_VERSION


def test_targets_are_named_once_and_say_why() -> None:
    paths = [target.path for target in TARGETS]
    assert len(paths) == len(set(paths))
    assert all(target.why for target in TARGETS)
    assert all((":" in target.path) == (target.kind is Kind.ITEM) for target in TARGETS)


@pytest.mark.parametrize(
    ("when", "wanted"),
    [
        (When.ALWAYS, {"plain", "replicated", "shared"}),
        (When.SPLITS, {"replicated", "shared"}),
        (When.DEBUG, set()),
        (When.CPU, set()),
    ],
)
def test_which_layouts_want_a_hook(when: When, wanted: set[str]) -> None:
    one = Target("x.y", Kind.AROUND, None, when, "a test")
    assert {layout.value for layout in Layout if one.wanted(layout=layout, cpu=False, debug=False)} == wanted


def test_switches_want_their_hooks() -> None:
    cpu = Target("x.y", Kind.AROUND, None, When.CPU, "a test")
    assert all(cpu.wanted(layout=layout, cpu=True, debug=False) for layout in Layout)
    debug = Target("x.y", Kind.AROUND, None, When.DEBUG, "a test")
    assert [debug.wanted(layout=layout, cpu=False, debug=True) for layout in Layout] == [
        layout is not Layout.OFF for layout in Layout
    ]
