"""Draining: new requests are refused, old ones finish or are told to end."""

from __future__ import annotations

import asyncio
import time

from plait.router.lifecycle import Lifecycle


class Request:
    """A request that ends when it is told to."""

    def __init__(self, life: Lifecycle, *, obeys: bool = True) -> None:
        self._life = life
        self._obeys = obeys
        self.stopped = 0
        life.add(self)

    def stop(self) -> None:
        self.stopped += 1
        if self._obeys:
            self.end()

    def end(self) -> None:
        self._life.discard(self)


async def test_idle_router_drains_at_once() -> None:
    life = Lifecycle()
    began = time.monotonic()
    assert await life.drain(seconds=5)
    assert time.monotonic() - began < 0.5
    assert life.draining


async def test_drain_waits_for_all_requests() -> None:
    life = Lifecycle()
    one, other = Request(life), Request(life)
    assert life.in_flight == 2
    draining = asyncio.create_task(life.drain(seconds=5))
    one.end()
    await asyncio.sleep(0.01)
    assert not draining.done()
    assert life.draining
    other.end()
    assert await asyncio.wait_for(draining, 1)
    assert (life.in_flight, one.stopped, other.stopped) == (0, 0, 0)


async def test_requests_that_outlive_the_drain_are_told_to_end() -> None:
    life = Lifecycle()
    ended, late = Request(life), Request(life)
    ended.end()
    assert not await life.drain(seconds=0.02)
    assert (ended.stopped, late.stopped, life.in_flight) == (0, 1, 0)


async def test_requests_that_do_not_end_do_not_hold_the_router() -> None:
    life = Lifecycle()
    deaf = Request(life, obeys=False)
    began = time.monotonic()
    assert not await life.drain(seconds=0.02, grace=0.02)
    # A second drain (a second signal) is as quick.
    assert not await life.drain(seconds=0.02, grace=0.02)
    assert time.monotonic() - began < 1
    assert deaf.stopped == 2


async def test_idle_router_that_had_requests_drains_at_once() -> None:
    life = Lifecycle()
    Request(life).end()
    Request(life).end()
    assert await life.drain(seconds=0.02)
