"""A raw HTTP/1.1 client: says exactly what it is told to, and notes what comes back and when."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import orjson

# No answer takes longer than this in any test: what does is a hung request.
HUNG = 20.0


class Reply:
    """One answer. `cut`: the connection broke before the answer's end. Times are time.monotonic()."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.parts: list[bytes] = []
        self.cut = False
        self.sent_at = 0.0
        self.head_at = 0.0
        self.ended_at = 0.0

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    @property
    def seconds(self) -> float:
        """From the request's last byte to the answer's."""
        return self.ended_at - self.sent_at

    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The OpenAI error of a plain answer, or the one that ends a stream. AssertionError: neither."""
        text = self.body
        if self.headers.get("content-type", "").startswith("text/event-stream"):
            assert text.endswith(b"\n\n"), text[-300:]
            text = text.rstrip(b"\n").rsplit(b"\n\n", 1)[-1]
            assert text.startswith(b"data: "), text[-300:]
            text = text.removeprefix(b"data: ")
        payload = json.loads(text)
        assert isinstance(payload.get("error"), dict), payload
        assert set(payload["error"]) >= {"message", "type", "code", "param"}, payload
        assert payload["error"]["message"], payload
        return dict(payload["error"])


class Wire:
    """One connection to the router."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int, *, receive_buffer: int = 0) -> Wire:
        """Connect. `receive_buffer`: size of the kernel's buffer, in bytes, for clients that stall."""
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
            limit = 1 << 20 if not receive_buffer else 1 << 12
            return cls(*await asyncio.open_connection(sock=sock, limit=limit))
        except BaseException:
            sock.close()
            raise

    async def send(self, data: bytes) -> None:
        """Write bytes as they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> Reply:
        """Send one request and read its answer."""
        await self.send(request_bytes(method, path, body, **headers))
        return await self.reply()

    async def reply(self) -> Reply:
        """Read one answer to its end. TimeoutError after HUNG seconds."""
        reply = Reply()
        reply.sent_at = time.monotonic()
        async with asyncio.timeout(HUNG):
            await self._head(reply)
            async for part in self._body(reply):
                reply.parts.append(part)
        reply.ended_at = time.monotonic()
        return reply

    async def head(self) -> Reply:
        """Read an answer up to its body, which stays unread."""
        reply = Reply()
        reply.sent_at = time.monotonic()
        async with asyncio.timeout(HUNG):
            await self._head(reply)
        return reply

    async def until_closed(self) -> bytes:
        """What comes until the router closes the connection; a reset counts. TimeoutError: it does not."""
        parts = []
        async with asyncio.timeout(HUNG):
            with contextlib.suppress(ConnectionError):
                while part := await self.reader.read(1 << 16):
                    parts.append(part)
        return b"".join(parts)

    def reset(self) -> None:
        """Leave as a process does that is killed."""
        sock = self.writer.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def close(self) -> None:
        """Leave as a client does that has seen enough."""
        self.writer.close()

    async def _head(self, reply: Reply) -> None:
        try:
            lines = (await self.reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        except asyncio.IncompleteReadError as error:
            raise ConnectionResetError(f"no answer, {error.partial[:200]!r}") from error
        reply.head_at = time.monotonic()
        reply.status = int(lines[0].split(b" ")[1])
        for line in lines[1:-2]:
            name, _, value = line.decode("latin-1").partition(":")
            reply.headers[name.strip().lower()] = value.strip()

    async def _body(self, reply: Reply) -> AsyncIterator[bytes]:
        try:
            if reply.headers.get("transfer-encoding", "").lower() == "chunked":
                while size := int((await self.reader.readline()).split(b";")[0] or b"z", 16):
                    yield await self.reader.readexactly(size)
                    await self.reader.readexactly(2)
                await self.reader.readline()
            elif "content-length" in reply.headers:
                yield await self.reader.readexactly(int(reply.headers["content-length"]))
            else:
                while part := await self.reader.read(1 << 16):
                    yield part
        except (asyncio.IncompleteReadError, ConnectionError, ValueError) as error:
            if isinstance(error, asyncio.IncompleteReadError) and error.partial:
                yield error.partial
            reply.cut = True


def request_bytes(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    """A request; header names are written with - for _."""
    named: Mapping[str, str] = {"host": "router", "content-length": str(len(body)), **headers}
    if body:
        named = {"content-type": "application/json", **named}
    lines = [f"{method} {path} HTTP/1.1", *(f"{k.replace('_', '-')}: {v}" for k, v in named.items())]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


async def ask(port: int, method: str, path: str, body: object = None, **headers: str) -> Reply:
    """One request on a connection of its own."""
    wire = await Wire.open(port)
    try:
        raw = b"" if body is None else body if isinstance(body, bytes) else orjson.dumps(body)
        return await wire.request(method, path, raw, **headers)
    finally:
        wire.close()
