"""Growth is told from the time that a router needs to settle."""

from __future__ import annotations

import pytest
from bench.router.soak import Sample, growth


def test_a_router_that_settles_does_not_grow() -> None:
    settling = [Sample(50 + 4 * i, 100 * i) for i in range(10)]
    assert growth(settling + [Sample(90, 1000)] * 40) == (0, 0)


def test_a_leak_is_seen() -> None:
    found = growth([Sample(60 + 0.1 * second, 1000 + second) for second in range(300)])
    assert found.memory_mb == pytest.approx(18)
    assert found.files == 180


def test_too_short_a_soak_says_so() -> None:
    with pytest.raises(ValueError, match="4 samples"):
        growth([Sample(1, 1)] * 4)
