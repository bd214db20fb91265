"""Cores and limits."""

from __future__ import annotations

import os
import resource

import pytest
from bench.router import machine
from bench.router.machine import MachineError, allow_files, split_cores


@pytest.fixture
def affinity() -> object:
    before = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, before)


def test_the_router_has_its_core_alone(affinity: object, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[set[int]] = []
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: {3, 5, 9})
    monkeypatch.setattr(machine.os, "sched_setaffinity", lambda _, cores: moved.append(cores))
    assert split_cores() == (3, 5)
    assert moved == [{5}]


def test_one_core_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: {2})
    with pytest.raises(MachineError, match="core 2 only"):
        split_cores()


def test_too_low_a_limit_of_files_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1024))
    with pytest.raises(MachineError, match="at most 1024 files"):
        allow_files()
