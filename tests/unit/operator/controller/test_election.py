"""The shares of a term, and the fence. The election itself runs against a real API server."""

from __future__ import annotations

import pytest

from plait_operator.apply.errors import FencedError
from plait_operator.controller.election import Fence, Terms


@pytest.mark.parametrize("term", [3, 15, 30, 60])
def test_a_write_begun_before_the_deadline_ends_before_the_term(term: float) -> None:
    terms = Terms.of(term)
    assert terms.deadline + terms.write < terms.term
    assert terms.retry * 3 < terms.deadline, "one or two lost renewals are no loss of the lead"


def test_a_term_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 3"):
        Terms.of(1)


def test_the_fence_opens_for_a_time_and_closes_by_itself() -> None:
    now = [10.0]
    fence = Fence(lambda: now[0])
    with pytest.raises(FencedError):
        fence.check()
    fence.open_until(20)
    fence.check()
    assert fence.left_s == 10
    now[0] = 20
    with pytest.raises(FencedError):
        fence.check()


def test_a_shut_fence_is_shut_at_once() -> None:
    fence = Fence(lambda: 0.0)
    fence.open_until(100)
    fence.shut()
    with pytest.raises(FencedError):
        fence.check()
    assert fence.left_s == 0
