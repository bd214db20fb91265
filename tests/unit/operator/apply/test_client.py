"""Whose clock counts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from plait_operator.apply.client import ahead

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("date", "seconds"),
    [
        ("Thu, 01 Jan 2026 12:00:00 GMT", 0),
        ("Thu, 01 Jan 2026 11:59:59 GMT", 0),
        ("Thu, 01 Jan 2026 12:00:02 GMT", 0),
        ("Thu, 01 Jan 2026 12:00:03 GMT", 3),
        ("Thu, 01 Jan 2026 15:00:00 GMT", 3 * 3600),
        ("Wed, 31 Dec 2025 12:00:00 GMT", -86400),
    ],
)
def test_a_difference_of_clocks(date: str, seconds: int) -> None:
    assert ahead(date, NOW) == timedelta(seconds=seconds)


@pytest.mark.parametrize("date", [None, "", "yesterday", "Thu, 01 Jan 2026 12:00:00 -0000"])
def test_a_date_that_says_nothing(date: str | None) -> None:
    assert ahead(date, NOW) is None
