"""Times as the API writes them. The plan has no clock of its own: what time it is, it is told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


def seconds_between(earlier: str, later: str) -> float:
    """Seconds from one RFC 3339 time to another; 0 where either is missing. Raises ValueError for others."""
    if not earlier or not later:
        return 0.0
    return (_time(later) - _time(earlier)).total_seconds()


def after(time: str, seconds: float) -> str:
    """The RFC 3339 time so many seconds later, in UTC."""
    return (_time(time) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _time(text: str) -> datetime:
    told = datetime.fromisoformat(text)
    return told if told.tzinfo else told.replace(tzinfo=UTC)
