"""The budget for further tries: a share of the requests, and a reserve for a bad moment."""

from __future__ import annotations

from plait.router.retries import RetryBudget


def spent(budget: RetryBudget) -> int:
    """Tries that may be made in a row now."""
    count = 0
    while budget.spend():
        count += 1
    return count


def test_reserve_is_there_from_the_start_and_ends() -> None:
    budget = RetryBudget(share=0.2, reserve=5)
    assert spent(budget) == 5
    assert not budget.spend()


def test_requests_earn_their_share() -> None:
    budget = RetryBudget(share=0.2, reserve=5)
    spent(budget)
    for _ in range(4):
        budget.earn()
    assert not budget.spend()
    budget.earn()
    assert spent(budget) == 1


def test_quiet_hours_save_no_more_than_the_reserve() -> None:
    budget = RetryBudget(share=0.2, reserve=5)
    for _ in range(10_000):
        budget.earn()
    assert spent(budget) <= 6


def test_where_all_fail_tries_are_a_fifth_of_the_requests() -> None:
    budget, tries = RetryBudget(), 0
    for _ in range(1000):
        budget.earn()
        tries += budget.spend()
    assert 200 <= tries <= 220
