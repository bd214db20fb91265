"""Engines without a GPU fork."""

from __future__ import annotations

import multiprocessing

import pytest

from plait.engine.cpu import processes


def test_fork_replaces_what_the_engine_has_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[tuple[str, bool]] = []
    monkeypatch.setattr(
        multiprocessing, "set_start_method", lambda method, *, force: chosen.append((method, force))
    )
    processes.fork_processes(None, "arguments")
    assert chosen == [("fork", True)]
