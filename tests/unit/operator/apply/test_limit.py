"""The rate of requests."""

from __future__ import annotations

import pytest

from plait_operator.apply.limit import Limiter


class Time:
    """A clock that sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def limiter(time: Time, *, rate: float, burst: int) -> Limiter:
    return Limiter(rate=rate, burst=burst, clock=time.clock, sleep=time.sleep)


def test_a_burst_passes_at_once_and_then_the_rate_holds() -> None:
    time = Time()
    limit = limiter(time, rate=10, burst=5)
    assert [limit.take() for _ in range(5)] == [0] * 5
    assert [round(limit.take(), 6) for _ in range(3)] == [0.1] * 3


def test_rest_fills_the_bucket_and_no_more_than_that() -> None:
    time = Time()
    limit = limiter(time, rate=10, burst=3)
    for _ in range(3):
        limit.take()
    time.now += 1000
    assert [limit.take() for _ in range(3)] == pytest.approx([0] * 3)
    assert limit.take() == pytest.approx(0.1)


@pytest.mark.parametrize(("rate", "burst"), [(0, 1), (-1, 1), (1, 0)])
def test_a_rate_that_lets_nothing_through_is_refused(rate: float, burst: int) -> None:
    with pytest.raises(ValueError, match="rate"):
        Limiter(rate=rate, burst=burst)
