"""What sources share: a list is handed over when it changed, and trouble is told once."""

from __future__ import annotations

import logging

import pytest

from plait.router.discovery.base import BaseSource
from plait.router.discovery.target import Target, Targets

ONE = (Target.decode("http://a:1"),)


def test_a_list_is_handed_over_only_when_it_changed() -> None:
    source, taken = BaseSource(kind="file", name="x"), list[Targets]()
    assert not source.synced
    for targets in (ONE, ONE, (), (), ONE):
        source._hand_over(taken.append, targets)
    assert taken == [ONE, (), ONE]
    assert source.synced


def test_an_empty_first_list_counts() -> None:
    source, taken = BaseSource(kind="file", name="x"), list[Targets]()
    source._hand_over(taken.append, ())
    assert taken == [()]
    assert source.synced


def test_a_list_that_was_not_taken_is_offered_again() -> None:
    def refuse(_: Targets) -> None:
        raise RuntimeError

    source, taken = BaseSource(kind="file", name="x"), list[Targets]()
    with pytest.raises(RuntimeError):
        source._hand_over(refuse, ONE)
    assert not source.synced
    source._hand_over(taken.append, ONE)
    assert taken == [ONE]


def test_each_change_of_state_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    source = BaseSource(kind="file", name="workers.yaml")
    for _ in range(3):
        source._failed("gone")
    assert source.problem == "gone"
    for _ in range(3):
        source._well()
    assert source.problem == ""
    assert [r.getMessage() for r in caplog.records] == [
        "workers.yaml: gone (no worker is known yet)",
        "workers.yaml is well again",
    ]


def test_age_is_of_the_last_word() -> None:
    source = BaseSource(kind="file", name="x")
    assert source.age is None
    source._heard()
    assert source.age is not None
    assert 0 <= source.age < 5
