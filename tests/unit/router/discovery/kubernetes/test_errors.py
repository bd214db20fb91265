"""How the kinds of errors are told apart: what happens next depends on it."""

from __future__ import annotations

from plait.router.discovery.kubernetes.errors import ApiError, CutError, GoneError, UnreachableError


def test_a_cut_watch_may_go_on_where_it_was_and_a_gone_version_may_not() -> None:
    assert isinstance(CutError("x"), UnreachableError)
    assert not isinstance(GoneError("x"), UnreachableError)
    assert isinstance(GoneError("x"), ApiError)
    assert ApiError("x").retry_after == 0.0
    assert ApiError("x", retry_after=3).retry_after == 3
