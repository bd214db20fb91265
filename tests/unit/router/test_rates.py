"""The token bucket of a key."""

from __future__ import annotations

import pytest

from plait.router.config import ConfigError
from plait.router.rates import Rate, TokenBucket


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("text", "burst", "rate"),
    [
        ("20/s", None, Rate(20.0, 20)),
        ("90/min", None, Rate(1.5, 90)),
        ("0.5/s", None, Rate(0.5, 1)),
        ("2.75/s", None, Rate(2.75, 2)),
        ("3/s", "40", Rate(3.0, 40)),
        ("1000000/s", "1000000", Rate(1e6, 1_000_000)),
    ],
)
def test_rates_are_read(text: str, burst: str | None, rate: Rate) -> None:
    assert Rate.parse(text, burst=burst) == rate


@pytest.mark.parametrize(
    "text",
    ["", "5", "5/h", "5 /s", "-5/s", "+5/s", "1e3/s", "nan/s", "inf/s", "5/S", "/s", "٥/s", "5./s", "5/s "],
)
def test_a_rate_in_another_form_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(ConfigError, match=r"N/s or N/min") as refused:
        Rate.parse(text)
    assert (refused.value.field, refused.value.value) == ("rate", text)


@pytest.mark.parametrize("text", ["0/s", "0.0/min", "1000001/s", "999999999/min"])
def test_a_rate_of_nothing_or_without_bounds_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="more than 0") as refused:
        Rate.parse(text)
    assert refused.value.field == "rate"


@pytest.mark.parametrize("burst", ["", "0", "-1", "1.5", "1000001", "9" * 5000, "٣", "x"])
def test_a_burst_that_is_no_count_is_refused(burst: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Rate.parse("1/s", burst=burst)
    assert refused.value.field == "burst"


def test_a_burst_is_let_through_and_then_the_rate() -> None:
    clock = Clock()
    bucket = TokenBucket(Rate(2.0, 3), clock=clock)
    assert [bucket.take() for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    taken = 0
    for _ in range(1000):
        clock.now += 0.01
        taken += bucket.take() == 0.0
    assert taken == 20


def test_who_waits_as_told_gets_one_and_only_one() -> None:
    clock = Clock()
    bucket = TokenBucket(Rate(7.0, 1), clock=clock)
    assert bucket.take() == 0.0
    for _ in range(10_000):
        wait = bucket.take()
        assert 0 < wait <= 1 / 7 + 1e-9
        clock.now += wait
        assert bucket.take() == 0.0


def test_a_refusal_takes_nothing() -> None:
    clock = Clock()
    bucket = TokenBucket(Rate(1.0, 1), clock=clock)
    bucket.take()
    clock.now += 0.25
    assert [bucket.take() for _ in range(50)] == [0.75] * 50


def test_a_rest_fills_the_bucket_and_no_more() -> None:
    clock = Clock()
    bucket = TokenBucket(Rate(10.0, 5), clock=clock)
    for _ in range(5):
        bucket.take()
    clock.now += 86_400
    assert bucket.level == 5
    assert [bucket.take() for _ in range(6)][-1] > 0


def test_a_new_rate_keeps_what_was_used() -> None:
    clock = Clock()
    bucket = TokenBucket(Rate(1.0, 10), clock=clock)
    for _ in range(8):
        bucket.take()
    clock.now += 1.0
    bucket.change(Rate(5.0, 100))
    assert bucket.rate == Rate(5.0, 100)
    assert bucket.level == pytest.approx(3.0)
    clock.now += 1.0
    assert bucket.level == pytest.approx(8.0)


def test_a_smaller_burst_holds_at_once() -> None:
    clock = Clock()
    bucket = TokenBucket(Rate(1.0, 10), clock=clock)
    bucket.change(Rate(1.0, 2))
    assert [bucket.take() for _ in range(3)] == [0.0, 0.0, 1.0]


def test_time_is_the_machines_unless_told_otherwise() -> None:
    bucket = TokenBucket(Rate(1.0, 1))
    assert bucket.take() == 0.0
    assert 0 < bucket.take() <= 1.0
