"""Fixtures: stub engines, and a router before them, all real servers on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
from tests.unit.router.stub_engine import StubEngine

from plait.router.app import admin_app
from plait.router.board import Board
from plait.router.config import Deadlines, PrefillTarget, RouterConfig
from plait.router.server import Server, client_server, finding, listen, server_of
from plait.router.sources import source_of
from plait.router.state import RouterState, open_state

# Deadlines that no test meets by chance, however busy the machine: those that a test is about it shortens.
CALM = Deadlines(
    connect=20.0,
    first_byte=30.0,
    idle=30.0,
    total=300.0,
    queue=30.0,
    client_stall=30.0,
    head=30.0,
    body=30.0,
    status=10.0,
    abort=5.0,
    linger=30.0,
    drain=30.0,
)


def brief(**seconds: float) -> Deadlines:
    """`CALM` with some deadlines shortened."""
    return dataclasses.replace(CALM, **seconds)


class RunningRouter:
    """A router that listens, its engines, and a client session."""

    def __init__(
        self,
        state: RouterState,
        board: Board,
        url: str,
        admin_url: str,
        http: aiohttp.ClientSession,
        engines: list[StubEngine],
        servers: list[Server],
    ) -> None:
        self.state = state
        self.clients, self.admin = servers
        self.board = board
        self.url = url
        self.admin_url = admin_url
        self.http = http
        self.engines = engines
        self.prefill = next(e for e in engines if e.role == "prefill")
        self.decode = next(e for e in engines if e.role == "decode")
        self._lag = 0.0

    async def watch_lag(self) -> None:
        """Notes how late this process runs, for as long as the router does."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + 0.01
            await asyncio.sleep(0.01)
            self._lag = max(self._lag, loop.time() - due)

    def within(self, seconds: float) -> float:
        """`seconds`, and what a busy machine has to be granted: ten turns of the loop, each at its latest."""
        return seconds + 10 * self._lag

    async def post(self, path: str, body: Any, **more: Any) -> tuple[int, bytes]:
        """Status and whole body of one request; `body` bytes go as they are."""
        how: dict[str, Any] = {"json": body}
        if isinstance(body, bytes):
            headers = {"content-type": "application/json"} | more.pop("headers", {})
            how = {"data": body, "headers": headers}
        async with self.http.post(self.url + path, **how, **more) as response:
            return response.status, await response.read()

    async def until(self, condition: Callable[[], bool], *, seconds: float = 10.0) -> None:
        """Wait for `condition`, fail after `seconds`."""
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.01)

    async def until_idle(self) -> None:
        """No request and no leg is under way any more."""
        await self.until(
            lambda: (
                not self.state.lifecycle.in_flight
                and not len(self.state.watch)
                and not any(w.in_flight for w in self.state.workers.workers)
            )
        )


@contextlib.asynccontextmanager
async def running_router(engines: list[StubEngine], **settings: Any) -> AsyncIterator[RunningRouter]:
    config = RouterConfig(
        **{
            "prefill": [PrefillTarget(e.url, 8998) for e in engines if e.role == "prefill"],
            "decode": [e.url for e in engines if e.role == "decode"],
            "port": 0,
            "deadlines": CALM,
            "poll_interval": 0.1,
            **settings,
        }
    )
    async with (
        open_state(config) as state,
        finding(state, source_of(config)) as board,
        aiohttp.ClientSession() as http,
    ):
        servers: list[tuple[Server, asyncio.Task[None], str]] = []
        for server in (client_server(state, board), server_of(admin_app(board), config)):
            sock = listen(config, "port", config.host, 0)
            scheme = "http" if server.certificate is None else "https"
            url = "{}://{}:{}".format(scheme, *sock.getsockname()[:2])
            servers.append((server, asyncio.create_task(server.serve(sockets=[sock])), url))
        made = [server for server, *_ in servers]
        router = RunningRouter(state, board, servers[0][2], servers[1][2], http, engines, made)
        lag = asyncio.create_task(router.watch_lag())
        try:
            yield router
        finally:
            lag.cancel()
            await http.close()
            # Not uvicorn's own end, which sleeps: hundreds of routers start here (test_server has it).
            for server, task, _ in servers:
                task.cancel()
                for listener in server.servers:
                    listener.close()
                for connection in list(server.server_state.connections):
                    connection.transport.abort()
            await asyncio.gather(
                *(t for s, _, _ in servers for t in s.server_state.tasks), return_exceptions=True
            )


class Lab:
    """Makes engines and routers, and ends them with the test."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack

    async def engine(self, role: str, *, tls: ssl.SSLContext | None = None, **settings: Any) -> StubEngine:
        made = StubEngine(role, **settings)
        made.tls = tls
        engine = await made.start()
        self._stack.push_async_callback(engine.stop)
        return engine

    async def router(self, *engines: StubEngine, ready: bool = True, **settings: Any) -> RunningRouter:
        """A router before `engines` (none given: one of each side), ready unless told otherwise."""
        made = list(engines) or [await self.engine("prefill", cp=2), await self.engine("decode")]
        router = await self._stack.enter_async_context(running_router(made, **settings))
        if ready:
            await router.until(lambda: bool(router.state.workers.pairs()))
        return router


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    async with AsyncExitStack() as stack:
        yield Lab(stack)


@pytest.fixture
async def router(lab: Lab) -> RunningRouter:
    """One prefill stub of CP 2, one decode stub, a ready router."""
    return await lab.router()
