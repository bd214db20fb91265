"""Deadlines on a loop that stands still, and on one that does not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable

import pytest

from plait.router.standstill import STANDSTILL, Deadline, Patience

BRIEF = 0.05


def stand_still(seconds: float) -> None:
    """Hold the loop, as a throttled container does."""
    time.sleep(seconds)


async def test_deadline_calls_once() -> None:
    calls: list[float] = []
    loop = asyncio.get_running_loop()
    began = loop.time()
    Deadline(loop, BRIEF, lambda: calls.append(loop.time() - began))
    await asyncio.sleep(BRIEF + 2 * STANDSTILL)
    assert len(calls) == 1
    assert calls[0] >= BRIEF - 0.002  # uvloop's clock has whole milliseconds


async def test_cancelled_deadline_calls_nothing() -> None:
    calls: list[str] = []
    loop = asyncio.get_running_loop()
    at_once = Deadline(loop, BRIEF, lambda: calls.append("at once"))
    at_once.cancel()
    forgiven = Deadline(loop, BRIEF, lambda: calls.append("forgiven"))
    stand_still(BRIEF + 2 * STANDSTILL)
    await asyncio.sleep(STANDSTILL / 2)
    forgiven.cancel()
    await asyncio.sleep(2 * STANDSTILL)
    assert not calls


async def test_what_came_while_the_loop_stood_still_is_taken_first() -> None:
    loop = asyncio.get_running_loop()
    reader, writer = await _pair()
    async with Patience(BRIEF):
        writer.write(b"x")
        await asyncio.sleep(0)
        stand_still(BRIEF + 2 * STANDSTILL)
        assert await reader.readexactly(1) == b"x"
    began = loop.time()
    with pytest.raises(TimeoutError):
        await _patient(BRIEF, reader.readexactly(1), still=BRIEF + 2 * STANDSTILL)
    # The moment is given once, so nothing waits for ever on a loop that is always late.
    assert loop.time() - began < BRIEF + 2 * STANDSTILL + 5 * STANDSTILL
    writer.close()


async def test_moment_is_given_once() -> None:
    calls: list[str] = []
    Deadline(asyncio.get_running_loop(), BRIEF, lambda: calls.append("late"))
    stand_still(BRIEF + 2 * STANDSTILL)
    await asyncio.sleep(0)
    await asyncio.sleep(0.001)
    assert not calls
    stand_still(3 * STANDSTILL)
    await asyncio.sleep(0.001)
    await asyncio.sleep(0.001)
    assert calls == ["late"]


async def test_patience_is_a_timeout() -> None:
    with pytest.raises(TimeoutError):
        async with Patience(BRIEF):
            await asyncio.sleep(30)
    async with Patience(30.0):
        await asyncio.sleep(0)
    with pytest.raises(ZeroDivisionError):
        async with Patience(30.0):
            raise ZeroDivisionError

    # A cancellation from outside stays one.
    async def waits() -> None:
        async with Patience(30.0):
            await asyncio.sleep(30)

    task = asyncio.create_task(waits())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def _patient(seconds: float, what: Awaitable[object], *, still: float) -> None:
    async with Patience(seconds):
        stand_still(still)
        await what


async def _pair() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A line's reading end, and the other's writing one."""
    met: asyncio.Future[asyncio.StreamReader] = asyncio.get_running_loop().create_future()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        met.set_result(reader)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    reader = await met
    server.close()
    return reader, writer
