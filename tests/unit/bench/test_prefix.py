"""Placement, from the mock engines' counts."""

from __future__ import annotations

import pytest
from bench.router.prefix import placement


def test_shares_and_unevenness() -> None:
    found = placement(
        {
            "tokens": 1000,
            "hit_tokens": 600,
            "owned": 40,
            "owner_hits": 30,
            "requests": [10, 20, 10, 10],
            "computed_tokens": [100, 100, 100, 100],
            "queued_seconds": [0.1, 0.2, 0.1, 0.1],
            "window_worst_to_mean": 1.3,
        },
        latency_ms=5.0,
    )
    assert (found.hit, found.owner, found.requests) == (0.6, 0.75, 50)
    assert (found.requests_worst_to_mean, found.computed_worst_to_mean) == (1.6, 1.0)
    assert found.window_worst_to_mean == 1.3
    assert found.queued_ms == pytest.approx(10)
