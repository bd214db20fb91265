"""A worker as placement sees it."""

from __future__ import annotations

from plait.router.placement.rendezvous import seed_of
from plait.router.placement.views import View


def test_a_worker_keeps_its_place_in_all_orders_when_it_restarts() -> None:
    before, after = View(1, "http://a:1"), View(2, "http://a:1")
    assert before.seed == after.seed == seed_of("http://a:1") != View(3, "http://b:1").seed


def test_a_new_worker_is_idle_and_unpaired() -> None:
    view = View(1, "http://a:1", limit=4)
    assert (view.in_flight, view.load, view.last_picked, view.suspect, view.wire) == (0, 0, 0, False, "")
    assert view.limit == 4
