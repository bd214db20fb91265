"""One question by HTTP to an address, and its answer: as little as that takes.

A fleet's routers are asked a hundred times a second for as long as the operator runs, each again long after
any connection would have been closed. A general client spends most of its time on what is not used here:
names, redirects, cookies, pools, compression.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

import httptools

_HEAD: Final = 64 << 10
"""Longest head of an answer, in bytes."""


class Answer(NamedTuple):
    """`status`: of HTTP. `body`: the whole of it."""

    status: int
    body: bytes


class MuteError(Exception):
    """There is no answer, or none that can be understood. Its text is the kind of the trouble, and no more:
    it stays the same while the trouble does."""


class TooLongError(Exception):
    """The answer is longer than anything that is read."""


async def ask(address: str, port: int, path: str, *, timeout_s: float, longest: int) -> Answer:
    """GET `path` of an IP address, over a connection of its own. `longest`: bytes of the body.

    Raises MuteError, also after `timeout_s` in all, and TooLongError.
    """
    host = f"[{address}]" if ":" in address else address
    request = (
        f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nAccept: application/json\r\n"
        "User-Agent: plait-operator\r\nConnection: close\r\n\r\n"
    ).encode("ascii", "replace")
    loop = asyncio.get_running_loop()
    transport: asyncio.BaseTransport | None = None
    try:
        async with asyncio.timeout(timeout_s):
            transport, listener = await loop.create_connection(
                lambda: _Listener(loop, request, longest), address, port
            )
            return await listener.answer
    except TimeoutError:
        raise MuteError("TimeoutError") from None
    except OSError as error:
        raise MuteError(type(error).__name__) from None
    finally:
        if isinstance(transport, asyncio.Transport):
            transport.abort()


class _Listener(asyncio.Protocol):
    """Sends the request and reads until the answer is whole. The parser calls its `on_...`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, request: bytes, longest: int) -> None:
        self.answer: asyncio.Future[Answer] = loop.create_future()
        self._request = request
        self._longest = longest
        self._parser = httptools.HttpResponseParser(self)
        self._body = bytearray()
        self._head_bytes = 0
        self._in_body = False
        self._sized = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self.answer.done():
            return
        if not self._in_body:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            known = isinstance(error.__context__, TooLongError)
            self._fail(TooLongError() if known else MuteError("no HTTP"))
        except httptools.HttpParserError:
            self._fail(MuteError("no HTTP"))
        if not self._in_body and self._head_bytes > _HEAD:
            self._fail(MuteError("no HTTP"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.answer.done():
            if exc is not None:
                self._fail(MuteError(type(exc).__name__))
            elif self._in_body and not self._sized:
                self._done()  # the end of the connection is the end of the answer
            else:
                self._fail(MuteError("cut off"))
        # Whoever asked may be gone; an error that nobody fetches must not be told as a fault.
        if self.answer.done() and not self.answer.cancelled():
            self.answer.exception()

    def on_message_begin(self) -> None:
        self._in_body = self._sized = False
        self._body.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-length" and int(value) > self._longest:
            raise TooLongError
        if name == b"transfer-encoding" and value.strip().lower() != b"chunked":
            raise ValueError(value)
        self._sized = self._sized or name in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        self._in_body = self._parser.get_status_code() >= 200  # 1xx: the answer is still to come

    def on_body(self, data: bytes) -> None:
        if len(self._body) + len(data) > self._longest:
            raise TooLongError
        self._body += data

    def on_message_complete(self) -> None:
        if self._in_body:
            self._done()

    def _done(self) -> None:
        if not self.answer.done():
            self.answer.set_result(Answer(self._parser.get_status_code(), bytes(self._body)))

    def _fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
