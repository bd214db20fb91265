"""A mock engine: a listener with the routes of an SGLang server under Plait, and switches for its faults."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import time

from tests.router.harness.ports import free_port
from tests.router.mocks import answers, faults
from tests.router.mocks.book import DIED, Book
from tests.router.mocks.connection import Connection, Exchange

_NAMES = itertools.count(1)


class MockEngine:
    """One engine. `await start()`, `await stop()`; the same port through all of its lives.

    Switches of the whole engine (faults of single requests come with the request, see `plan`):
    `status_mode`: how /plait/status answers: "ok", "hang", or an HTTP status. `abort_mode`: "ok" or "hang".
    `always`: the fault of every prompt. `never_read`: prompts' bodies stay in the socket.
    `close_after_answer`: keep-alive connections are closed without a word. `reset_when_reused`: a prompt on
    a connection that has served before is met by a reset. `keep_small`: health checks and aborts leave
    connections that prompts may use. `always_reborn`: each status is that of another process.
    """

    def __init__(self, role: str, book: Book, *, wire_hash: str = "wire-a", cp: int = 1) -> None:
        self.role = role
        self.book = book
        self.name = f"{role}-{next(_NAMES)}"
        self.wire_hash = wire_hash
        self.cp = cp
        self.started_at = time.time()
        self.status_mode = "ok"
        self.abort_mode = "ok"
        self.always = ""
        self.never_read = False
        self.close_after_answer = False
        self.keep_small = True
        self.always_reborn = False
        self.reset_when_reused = False
        self.connections: set[Connection] = set()
        self.accepted = 0
        self.polls = 0
        self.aborts = 0
        self.resets = 0
        self.never_read_hits = 0
        self.errors: list[Exception] = []  # faults of the mock itself
        self.malformed: list[str] = []  # what no HTTP parser takes, sent by the router
        self.unexpected: list[str] = []  # routes that a router has no business with
        self._server: asyncio.Server | None = None
        self._port = free_port()  # kept through its lives, so nobody else may take it meanwhile
        self._clog = contextlib.ExitStack()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def busy(self) -> int:
        """Prompts under way."""
        return sum(1 for c in self.connections if c.exchange is not None)

    async def start(self) -> MockEngine:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self), "127.0.0.1", self._port, backlog=4096, reuse_address=True
        )
        return self

    async def stop(self) -> None:
        """Die: the port is closed, all connections are reset."""
        self._clog.close()
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self.connections):
            if connection.exchange is not None:
                connection.exchange.leg.fault = "killed"
                connection.exchange.happened()
                connection.exchange.leg.end(DIED)
            connection.reset()
        await asyncio.sleep(0)

    async def drop_idle(self) -> None:
        """Close the connections that carry nothing: the next prompt comes on a fresh one."""
        for connection in list(self.connections):
            # One that has served nothing yet may carry a health check that is on its way.
            if connection.exchange is None and connection.served:
                connection.transport.close()
        await asyncio.sleep(0.01)

    async def clog(self) -> None:
        """Take no connection any more and refuse none: the listener's queue is full. `stop` ends it."""
        await self.stop()
        listener = self._clog.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self._port))
        listener.listen(0)
        for _ in range(4):
            filler = self._clog.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", self._port))

    def reborn(self) -> None:
        """From the next poll on, the status is that of another process at the same address."""
        self.started_at = time.time()

    def status(self) -> bytes:
        """Body of `GET /plait/status`."""
        if self.always_reborn:
            self.reborn()
        return answers.status(
            self.role,
            wire_hash=self.wire_hash,
            started_at=self.started_at,
            in_flight=self.busy,
            cp=self.cp,
        )

    async def serve(self, exchange: Exchange) -> None:
        """Answer one prompt as its plan says."""
        plan = exchange.plan
        name = self.always or plan.fault(self.role)
        if not name or not self.book.due(plan.tag, self.role, plan.times):
            await faults.healthy(exchange)
            return
        fault = faults.FAULTS[name]
        if fault.guilty:
            exchange.leg.fault = name
            self.book.acted[self.url, name] += 1
        await fault.act(exchange)
