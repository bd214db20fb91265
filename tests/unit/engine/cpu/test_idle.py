"""An idle scheduler leaves the core to others, for a moment short beside a batch."""

from __future__ import annotations

import time

import pytest

from plait.engine.cpu import idle


def test_it_naps_for_a_few_milliseconds_once(monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []
    monkeypatch.setattr(time, "sleep", naps.append)
    assert idle.nap("scheduler") is None, "the engine's own arguments stay as they are"
    [slept] = naps
    assert 0 < slept <= 0.01
