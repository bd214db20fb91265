"""Times as the API writes them."""

from __future__ import annotations

import pytest

from plait_operator.plan.clock import after, seconds_between

NOW = "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("one", "two", "seconds"),
    [
        (NOW, "2026-01-01T00:01:00Z", 60),
        ("2026-01-01T00:01:00Z", NOW, -60),
        (NOW, "2026-01-01T01:00:00+01:00", 0),
        (NOW, "2026-01-01T00:00:00.500000Z", 0.5),
        (NOW, "2026-01-01T00:00:01", 1),
        ("", NOW, 0),
        (NOW, "", 0),
    ],
)
def test_seconds(one: str, two: str, seconds: float) -> None:
    assert seconds_between(one, two) == seconds


def test_no_time_is_an_error() -> None:
    with pytest.raises(ValueError, match="yesterday"):
        seconds_between("yesterday", NOW)


def test_after() -> None:
    assert after(NOW, 86400.7) == "2026-01-02T00:00:00Z"
