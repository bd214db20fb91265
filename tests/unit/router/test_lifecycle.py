"""Draining: new requests are refused, old ones finish or are told to end."""

from __future__ import annotations

import asyncio
import time

from plait.router.lifecycle import Lifecycle


async def test_idle_router_drains_at_once() -> None:
    life = Lifecycle()
    began = time.monotonic()
    assert await life.drain(seconds=5)
    assert time.monotonic() - began < 0.5
    assert life.draining
    assert not life.stop.done()


async def test_drain_waits_for_all_requests() -> None:
    life = Lifecycle()

    async def request(seconds: float) -> None:
        with life.request():
            await asyncio.sleep(seconds)

    tasks = [asyncio.create_task(request(s)) for s in (0.05, 0.1)]
    await asyncio.sleep(0)
    assert life.in_flight == 2
    assert await life.drain(seconds=5)
    assert all(t.done() for t in tasks)
    assert life.in_flight == 0


async def test_requests_that_outlive_the_drain_are_told_to_end() -> None:
    life = Lifecycle()

    async def request() -> None:
        with life.request():
            await asyncio.wait([life.stop])

    task = asyncio.create_task(request())
    await asyncio.sleep(0)
    assert not await life.drain(seconds=0.05)
    await asyncio.wait_for(task, 1)


async def test_requests_that_do_not_end_do_not_hold_the_router() -> None:
    life = Lifecycle()
    with life.request():
        began = time.monotonic()
        assert not await life.drain(seconds=0.05, grace=0.05)
        # A second drain (a second signal) is as quick.
        assert not await life.drain(seconds=0.05, grace=0.05)
        assert time.monotonic() - began < 1


async def test_request_is_counted_when_it_fails() -> None:
    life = Lifecycle()
    try:
        with life.request():
            raise ValueError
    except ValueError:
        pass
    assert life.in_flight == 0
    assert await life.drain(seconds=0.1)
