"""A client of bytes: what it sends is what it says, and what it reads is all there is."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Answer(NamedTuple):
    """One response. `headers`: names in lower case, of equal ones the last."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        """The OpenAI error; fails where the form is another one."""
        payload = json.loads(self.body)
        assert set(payload) == {"error"}
        assert set(payload["error"]) == {"message", "type", "code", "param"}
        return dict(payload["error"])


class Wire:
    """One connection to a router."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *pieces: bytes, pause: float = 0.02) -> None:
        """Each in a segment of its own, as far as that can be had."""
        for number, piece in enumerate(pieces):
            if number:
                await asyncio.sleep(pause)
            self.writer.write(piece)
            with contextlib.suppress(ConnectionError):
                await self.writer.drain()

    async def answer(self, *, head_only: bool = False) -> Answer:
        """The next response, whole. Raises IncompleteReadError where none comes."""
        async with asyncio.timeout(20):
            head = await self.reader.readuntil(b"\r\n\r\n")
            lines = head.decode("latin-1").split("\r\n")
            status = int(lines[0].split()[1])
            headers = {k.lower(): v.strip() for k, v in (line.split(":", 1) for line in lines[1:] if line)}
            if head_only or status == 100:
                return Answer(status, headers, b"")
            if headers.get("transfer-encoding") == "chunked":
                return Answer(status, headers, await self._chunks())
            return Answer(status, headers, await self.reader.readexactly(int(headers["content-length"])))

    async def _chunks(self) -> bytes:
        found = b""
        while True:
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            data = await self.reader.readexactly(size + 2)
            if not size:
                return found
            found += data[:-2]

    async def closed(self) -> bytes:
        """What comes until the other side closes."""
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionError):
                return await self.reader.read()
        return b""


@contextlib.asynccontextmanager
async def wire(url: str) -> AsyncIterator[Wire]:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()


def request(
    body: bytes | dict[str, Any] = b"",
    path: str = "/v1/chat/completions",
    *,
    method: str = "POST",
    host: str | None = "x",
    headers: tuple[str, ...] = (),
    version: str = "1.1",
) -> bytes:
    """A whole request."""
    if isinstance(body, dict):
        body = json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/{version}"]
    lines += [f"host: {host}"] if host is not None else []
    lines += [f"content-length: {len(body)}"] if body else []
    return "\r\n".join((*lines, *headers, "", "")).encode("latin-1") + body
