"""Fixtures: a fake API server, and sources that follow it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.unit.router.discovery.kubernetes.fake_apiserver import FakeApiServer

from plait.router.discovery.kubernetes.access import find_access
from plait.router.discovery.kubernetes.settings import KubernetesSettings
from plait.router.discovery.kubernetes.source import KubernetesSource
from plait.router.discovery.target import Targets


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    fake = await FakeApiServer().start()
    yield fake
    await fake.stop()


async def until(condition: Callable[[], bool], *, seconds: float = 20.0) -> float:
    """Seconds until `condition` held; fails after `seconds`."""
    start = time.monotonic()
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
    return time.monotonic() - start


class Followed:
    """A source that runs, and the lists that it has handed over."""

    def __init__(self, source: KubernetesSource, token: Path) -> None:
        self.source = source
        self.token = token
        self.taken: list[Targets] = []
        self.task = asyncio.create_task(source.watch(self.take))
        self.break_take = False

    def take(self, targets: Targets) -> None:
        if self.break_take:
            raise RuntimeError("the router could not take this list")
        self.taken.append(targets)

    @property
    def hosts(self) -> list[str]:
        """Last parts of the addresses in the last list."""
        return [t.url.removeprefix("http://10.0.0.").removesuffix(":30000") for t in self.taken[-1]]

    async def until(self, *hosts: str) -> float:
        """Wait for a list of these addresses."""
        return await until(lambda: bool(self.taken) and self.hosts == list(hosts))

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture
async def follow(server: FakeApiServer, tmp_path: Path) -> AsyncIterator[Callable[..., Followed]]:
    """Starts sources before `server`; keyword arguments are settings."""
    async with AsyncExitStack() as stack:

        def start(**settings: Any) -> Followed:
            token = tmp_path / "token"
            token.write_text("first")
            given = {"server": server.url, "namespace": "pool", "token_file": str(token), **settings}
            made = KubernetesSettings(**given)
            followed = Followed(KubernetesSource(made, find_access(made, environ={})), token)
            stack.push_async_callback(followed.end)
            return followed

        yield start
