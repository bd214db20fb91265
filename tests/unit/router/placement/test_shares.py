"""Fading sums."""

from __future__ import annotations

import pytest

from plait.router.placement.shares import Shares


def test_sums_fade() -> None:
    sums = Shares(100)
    sums.add(1)
    assert sums.of(1) == pytest.approx(1)
    for _ in range(100):
        sums.add(2)
    assert sums.of(1) == pytest.approx(1 / (1 + 1 / 100) ** 100)
    assert sums.total == pytest.approx(sums.of(1) + sums.of(2))


def test_the_total_goes_towards_the_window() -> None:
    sums = Shares(100)
    for _ in range(2_000):
        sums.add(1)
    assert sums.total == pytest.approx(100, rel=0.02)


def test_share() -> None:
    sums = Shares(1_000)
    for number in range(400):
        sums.add(number % 4 == 0)
    assert sums.share(1, least=1) == pytest.approx(0.25, rel=0.01)
    assert sums.share(5, least=1) == 0


def test_few_additions_make_no_share() -> None:
    sums = Shares(1_000)
    sums.add(1)
    assert sums.share(1, least=50) == pytest.approx(1 / 50)


def test_long_use_neither_overflows_nor_drifts() -> None:
    sums = Shares(10)
    for number in range(30_000):  # a unit weighs 1.1 ** 30,000 by then, without being rescaled
        sums.add(number % 2)
    assert sums.of(0) == pytest.approx(5, rel=0.1)
    assert sums.of(1) == pytest.approx(6, rel=0.1)
    assert sums.total == pytest.approx(sums.of(0) + sums.of(1))


def test_keys_are_bounded() -> None:
    sums = Shares(50)
    for number in range(10_000):
        sums.add(number)
        sums.add(-1, 3)
    assert len(sums) <= 4 * 50 + 1
    assert sums.share(-1, least=1) == pytest.approx(0.75, rel=0.05)


def test_who_is_above_the_mean() -> None:
    sums = Shares(1_000)
    for key, amount in ((1, 10), (2, 20), (3, 60)):
        sums.add(key, amount)
    assert sums.above_mean([1, 2, 3], 20) == {3}
    assert sums.above_mean([1, 2, 3], 40) == set()
    assert sums.above_mean([1, 2], 1) == {2}  # the mean is of those that were asked for
    assert sums.above_mean([8, 9], 0) == set()


def test_a_newcomer_is_neither_above_nor_behind() -> None:
    sums = Shares(1_000)
    for key, amount in ((1, 10), (2, 30)):
        sums.add(key, amount)
    sums.start(3)
    assert sums.of(3) == pytest.approx(20, rel=0.01)
    sums.start(1)
    assert sums.of(1) == pytest.approx(10, rel=0.01)
    assert sums.above_mean([1, 2, 3], 5) == {2}


def test_dropped_keys_leave_nothing() -> None:
    sums = Shares(1_000)
    sums.add(1, 10)
    sums.add(2, 30)
    sums.drop(2)
    sums.drop(7)
    assert sums.of(2) == 0
    assert sums.total == pytest.approx(sums.of(1))
