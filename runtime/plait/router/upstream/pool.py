"""Connections to one engine, kept and used again.

A kept connection is used again only while it is younger (idle) than the engine's own keep-alive time, and the
last one returned is taken first, so that a pool shrinks by itself after a burst.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import cast
from urllib.parse import urlsplit

from plait.router.engine_tls import EngineTrust
from plait.router.standstill import Patience
from plait.router.upstream.connection import Buffer, Connection, Fault, Owner, Receiver

# Engines (uvicorn) close an idle connection after 5 s: used again just then, it would fail.
KEEP_SECONDS = 2.0


class Pool(Owner):
    """All connections to one engine. `close` ends them, under way or not.

    `connected` hears the seconds that each new connection took. `trust`: needed for https.
    """

    def __init__(
        self,
        url: str,
        *,
        connect_seconds: float,
        connected: Callable[[float], None] = lambda seconds: None,
        trust: EngineTrust | None = None,
    ) -> None:
        parts = urlsplit(url)
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self.authority = parts.netloc.encode("ascii")
        self.connect_seconds = connect_seconds
        self._trust = (trust or EngineTrust()) if parts.scheme == "https" else None
        self._connected = connected
        self._loop = asyncio.get_running_loop()
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def connections(self) -> int:
        """Open connections, idle ones included."""
        return len(self._open)

    def send(self, pieces: list[Buffer], receiver: Receiver, *, fresh: bool = False) -> Sending:
        """Send one request; `receiver` gets the response or the failure, at the earliest in the next turn.

        `fresh`: on a new connection. The result withdraws it.
        """
        connection = None if fresh else self._take()
        if connection is not None:
            connection.request(pieces, receiver)
            return Sending(connection, None)
        sending = Sending(None, None)
        task = self._loop.create_task(self._connect(sending, pieces, receiver))
        sending.task = task
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        return sending

    def sweep(self) -> None:
        """Close what has been idle for too long; to be called every second or so."""
        due = self._loop.time() - KEEP_SECONDS
        stale = [c for c in self._idle if c.idle_since < due or not c.usable]
        if stale:
            self._idle = [c for c in self._idle if c not in stale]
            for connection in stale:
                connection.close()

    def drop_idle(self) -> None:
        """Close all idle connections: the engine behind the address is another one."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def retire(self) -> None:
        """Keep nothing any more. What is under way (an abort, to an engine that is listed no more), and what
        is sent after it, ends by itself.
        """
        self._closed = True
        self.drop_idle()

    async def close(self) -> None:
        """Close everything, whatever is under way."""
        self._closed = True
        self._idle.clear()
        tasks = list(self._connecting)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in list(self._open):
            connection.close()

    def _take(self) -> Connection | None:
        due = self._loop.time() - KEEP_SECONDS
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since >= due and connection.usable:
                return connection
            connection.close()
        return None

    async def _connect(self, sending: Sending, pieces: list[Buffer], receiver: Receiver) -> None:
        began = self._loop.time()
        tls = None if self._trust is None else self._trust.context
        try:
            async with Patience(self.connect_seconds):
                _, made = await self._loop.create_connection(self._make, self.host, self.port, ssl=tls)
        except TimeoutError:
            receiver.on_failed(Fault.REFUSED, f"took no connection within {self.connect_seconds:g} s")
        except (OSError, ssl.SSLError) as error:
            receiver.on_failed(Fault.REFUSED, f"refused the connection ({error})")
        else:
            connection = cast(Connection, made)
            self._connected(self._loop.time() - began)
            sending.connection, sending.task = connection, None
            if connection.usable:
                connection.request(pieces, receiver)
            else:
                receiver.on_failed(Fault.BROKEN, "closed the connection at once")

    def _make(self) -> asyncio.Protocol:
        return cast(asyncio.Protocol, Connection(self))

    # What its connections tell it (connection.Owner).

    def now(self) -> float:
        return self._loop.time()

    def opened(self, connection: Connection) -> None:
        self._open.add(connection)

    def kept(self, connection: Connection) -> None:
        if self._closed:
            connection.close()
            return
        connection.idle_since = self._loop.time()
        self._idle.append(connection)

    def lost(self, connection: Connection) -> None:
        self._open.discard(connection)


class Sending:
    """A request under way: on a connection, or still waiting for one."""

    __slots__ = ("connection", "task")

    def __init__(self, connection: Connection | None, task: asyncio.Task[None] | None) -> None:
        self.connection = connection
        self.task = task

    def withdraw(self) -> None:
        """Close the connection, or give up connecting; the receiver hears nothing any more."""
        if self.connection is not None:
            self.connection.close()
        elif self.task is not None:
            task, self.task = self.task, None  # it holds this, too
            task.cancel()
