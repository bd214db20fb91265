"""The version of the engine in the image."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from plait.pod.asked import Asked
from plait.pod.checks import engine


@pytest.mark.parametrize(
    ("version", "ok", "says"),
    [("0.5.17", True, ""), ("0.5.18", False, "not made for it"), (None, False, "no sglang")],
)
def test_the_installed_version(
    asked: Callable[..., Asked], monkeypatch: pytest.MonkeyPatch, version: str | None, ok: bool, says: str
) -> None:
    monkeypatch.setattr(engine, "installed_engine", lambda: version)
    (result,) = engine.check(asked())
    assert result.ok is ok
    assert says in result.reason
    assert result.value == (version or "none")
    assert ("0.5.17" in result.fix) is not ok
