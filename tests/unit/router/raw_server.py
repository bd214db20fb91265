"""A server of bytes on loopback, for answers that no HTTP library would send."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


class Line:
    """One connection, as the server has it. `number` counts from 1."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        self.reader = reader
        self.writer = writer
        self.number = number

    async def request(self) -> tuple[bytes, bytes]:
        """Head and body of the next request. Raises IncompleteReadError at the connection's end."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        return head, await self.reader.readexactly(length)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        self.writer.transport.abort()

    @property
    def socket(self) -> socket.socket:
        found: socket.socket = self.writer.get_extra_info("socket")
        return found


Script = Callable[[Line], Awaitable[None]]


async def answer_all(line: Line) -> None:
    """`OK` to each request."""
    while True:
        await line.request()
        await line.send(OK)


class RawServer:
    """`lines`: all connections that were ever taken; `ended`: how many of them are over."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.lines: list[Line] = []
        self.ended = 0


@contextlib.asynccontextmanager
async def raw_server(
    script: Script = answer_all, *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[RawServer]:
    """Each connection is `script`'s, and closed when that returns."""
    tasks: set[asyncio.Task[None]] = set()

    async def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        line = Line(reader, writer, len(server.lines) + 1)
        server.lines.append(line)
        try:
            await script(line)
        except (asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
            pass
        finally:
            server.ended += 1
            writer.close()
            tasks.discard(task)

    listener = await asyncio.start_server(met, "127.0.0.1", 0, ssl=tls)
    host, port = listener.sockets[0].getsockname()
    server = RawServer(f"{'https' if tls else 'http'}://{host}:{port}")
    try:
        yield server
    finally:
        listener.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
