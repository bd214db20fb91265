"""One bench for the modules that need no router of their own, and the loop that all of it lives in."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from tests.router.harness.bench import BRIEF, Bench, bench


@pytest_asyncio.fixture(loop_scope="session", scope="package")
async def shared() -> AsyncIterator[Bench]:
    """Two engines of each side, a router with short deadlines, and a body limit of 1 MiB.

    Ended with this folder: the loop that serves the engines stands still while other tests run.
    """
    limits = ("--max-body-mib", "1", "--head-timeout", "1.5", "--body-timeout", "1.5")
    async with bench(flags=(*BRIEF, *limits)) as made:
        yield made
        await made.nothing_left()


@pytest_asyncio.fixture(loop_scope="session")
async def it(shared: Bench) -> AsyncIterator[Bench]:
    """The shared bench, at rest before a test and after it."""
    await shared.recovered()
    shared.lag.worst = 0.0
    shared.book.foreign_aborts.clear()
    yield shared
    await shared.idle()
    assert not shared.faults_of_the_suite()
    shared.book.forget()
