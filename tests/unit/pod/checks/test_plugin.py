"""The engine's loader finds the plugin, or this says why not."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable

import pytest

from plait.pod.asked import Asked
from plait.pod.checks import plugin


def test_it_is_found(asked: Callable[..., Asked]) -> None:
    (result,) = plugin.check(asked())
    assert result.ok
    assert result.value == f"plait {importlib.metadata.version('plait')}"


def test_it_is_left_out_by_name(asked: Callable[..., Asked]) -> None:
    (result,) = plugin.check(asked(env={"SGLANG_PLUGINS": "a,b"}))
    assert not result.ok
    assert result.value == "SGLANG_PLUGINS=a,b"
    assert "a,b,plait" in result.fix


def test_a_tree_without_its_metadata(asked: Callable[..., Asked], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [])
    (result,) = plugin.check(asked())
    assert not result.ok
    assert "no entry point" in result.reason
