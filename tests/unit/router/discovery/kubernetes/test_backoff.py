"""Waits grow, have a ceiling, and are random."""

from __future__ import annotations

from plait.router.discovery.kubernetes.backoff import Backoff


def test_waits_double_up_to_the_ceiling() -> None:
    longest = Backoff(first=0.2, most=3.0, rand=lambda: 1.0)
    assert [round(longest.next(), 3) for _ in range(6)] == [0.2, 0.4, 0.8, 1.6, 3.0, 3.0]
    assert longest.failures == 6


def test_at_least_half_is_waited_and_the_rest_is_random() -> None:
    shortest = Backoff(first=1.0, most=8.0, rand=lambda: 0.0)
    assert [shortest.next() for _ in range(4)] == [0.5, 1.0, 2.0, 4.0]
    waits = {Backoff().next() for _ in range(20)}
    assert len(waits) > 1
    assert all(0.1 <= wait <= 0.2 for wait in waits)


def test_after_a_reset_it_begins_anew() -> None:
    backoff = Backoff(rand=lambda: 1.0)
    first = backoff.next()
    backoff.next()
    backoff.reset()
    assert (backoff.failures, backoff.next()) == (0, first)


def test_no_number_of_failures_is_too_many() -> None:
    backoff = Backoff(most=10.0, rand=lambda: 1.0)
    assert [backoff.next() for _ in range(5000)][-1] == 10.0
