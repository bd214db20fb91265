"""Clients that connect anew for each request: what a connection took is given back when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.router.harness.bench import Bench, bench

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB = 1 << 20
# All at once, again and again: a connection costs some KiB while it is open, and nothing afterwards.
BURST, WARM_UP, BURSTS = 200, 4, 15
GROWTH = 4 * MIB


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def it() -> AsyncIterator[Bench]:
    """The usual deadlines: so many at once take the mock engines longer than the shared bench waits."""
    async with bench(flags=()) as made:
        yield made
        await made.nothing_left()


async def test_connections_that_come_and_go_leave_no_memory(it: Bench) -> None:
    for _ in range(WARM_UP):
        await _burst(it)
    memory = it.router.rss()
    for _ in range(BURSTS):
        await _burst(it)
    grown = it.router.rss() - memory
    assert grown < GROWTH, f"{grown / MIB:.1f} MiB more after {BURST * BURSTS} connections"


async def _burst(it: Bench) -> None:
    replies = await asyncio.gather(*(it.prompt(streamed=bool(n % 2)) for n in range(BURST)))
    assert {r.status for r in replies} == {200}
    it.book.forget()
