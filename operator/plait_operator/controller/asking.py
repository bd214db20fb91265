"""One question by HTTP to an address, and its answer: as little as that takes.

A fleet's routers are asked a hundred times a second for as long as the operator runs, each again long after
any connection would have been closed. A general client spends most of its time on what is not used here:
names, redirects, cookies, pools, compression.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

_HEAD: Final = 64 << 10
"""Longest head of an answer, in bytes."""
_END: Final = b"\r\n\r\n"


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
    """Sends the request and reads until the answer is whole."""

    def __init__(self, loop: asyncio.AbstractEventLoop, request: bytes, longest: int) -> None:
        self.answer: asyncio.Future[Answer] = loop.create_future()
        self._request = request
        self._longest = longest
        self._held = bytearray()
        self._head: _Head | None = None
        self._begin = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._held += data
        self._read(ended=False)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.answer.done():
            if exc is None:
                self._read(ended=True)
            else:
                self._fail(MuteError(type(exc).__name__))
        # Whoever asked may be gone; an error that nobody fetches must not be told as a fault.
        if self.answer.done() and not self.answer.cancelled():
            self.answer.exception()

    def _fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    def _read(self, *, ended: bool) -> None:
        if self.answer.done():
            return
        try:
            told = self._told(ended=ended)
        except (MuteError, TooLongError) as error:
            self._fail(error)
            return
        except ValueError:
            self._fail(MuteError("no HTTP"))
            return
        if told is not None:
            self.answer.set_result(told)
        elif ended:
            self._fail(MuteError("cut off"))

    def _told(self, *, ended: bool) -> Answer | None:
        """The answer, None while it is not whole. Raises MuteError, TooLongError, ValueError."""
        if self._head is None:
            self._head = self._find_head()
            if self._head is None:
                return None
        head, held = self._head, len(self._held) - self._begin
        if head.length is not None:
            if head.length > self._longest:
                raise TooLongError
            if held < head.length:
                return None
            return Answer(head.status, bytes(self._held[self._begin : self._begin + head.length]))
        # Chunks have some bytes around them: a body that is too long is noticed a little later.
        if held > (2 * self._longest if head.chunked else self._longest):
            raise TooLongError
        if head.chunked:
            if not ended and not self._held.endswith(_END):
                return None  # Looked at once: when the last chunk seems to be there.
            body = _joined(memoryview(bytes(self._held))[self._begin :], self._longest)
            return None if body is None else Answer(head.status, body)
        return Answer(head.status, bytes(self._held[self._begin :])) if ended else None

    def _find_head(self) -> _Head | None:
        while (at := self._held.find(_END)) >= 0:
            head = _head(bytes(self._held[:at]))
            if head.status >= 200:
                self._begin = at + len(_END)
                return head
            del self._held[: at + len(_END)]  # 1xx: the answer is still to come
        if len(self._held) > _HEAD:
            raise MuteError("no HTTP")
        return None


class _Head(NamedTuple):
    status: int
    length: int | None
    chunked: bool


def _head(text: bytes) -> _Head:
    """Raises ValueError."""
    first, *lines = text.decode("latin-1").split("\r\n")
    version, status, *_ = first.split(" ")
    if not version.startswith("HTTP/1.") or len(status) != 3:
        raise ValueError(first)
    fields: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise ValueError(line)
        fields[name.strip().lower()] = value.strip()
    coding = fields.get("transfer-encoding", "identity").lower()
    if coding not in ("identity", "chunked"):
        raise ValueError(coding)
    chunked = coding == "chunked"
    if chunked or "content-length" not in fields:
        return _Head(_digits(status), None, chunked)
    return _Head(_digits(status), _digits(fields["content-length"]), chunked)


def _digits(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(text)
    return int(text)


def _joined(data: memoryview, longest: int) -> bytes | None:
    """The body of its chunks; None while they are not all there. Raises ValueError, TooLongError."""
    held, body, at = bytes(data), bytearray(), 0
    while True:
        end = held.find(b"\r\n", at)
        if end < 0:
            return None
        size = int(held[at:end].partition(b";")[0].strip(), 16)
        if size < 0:
            raise ValueError(size)
        if size == 0:
            return bytes(body)  # What follows are trailers, which nobody asked for.
        if len(body) + size > longest:
            raise TooLongError
        at = end + 2 + size
        if len(held) < at + 2:
            return None
        if held[at : at + 2] != b"\r\n":
            raise ValueError(held[at : at + 2])
        body += held[end + 2 : at]
        at += 2
