"""One-off requests to an engine, awaited: status polls, model lists, aborts. Not for prompts."""

from __future__ import annotations

import asyncio
import functools
from typing import NamedTuple

from plait.router.standstill import Patience
from plait.router.upstream.connection import Fault, Headers, Receiver
from plait.router.upstream.pool import Pool

# A status of 64 ranks is some 100 KiB.
MAX_BYTES = 8 << 20


class FetchError(Exception):
    """No answer; the message says why."""

    def __init__(self, fault: Fault | None, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class Answer(NamedTuple):
    """A whole response."""

    status: int
    headers: Headers
    body: bytes


async def fetch(
    pool: Pool,
    method: str,
    target: str,
    *,
    headers: Headers = [],  # noqa: B006 (never changed)
    body: bytes = b"",
    seconds: float,
) -> Answer:
    """`target` (path and query) of the engine behind `pool`.

    Raises FetchError, and TimeoutError after `seconds`.
    """
    head = request_head(method, target, pool.authority, headers, len(body))
    try:
        return await _once(pool, head + body, seconds, fresh=False)
    except FetchError as error:
        if error.fault is not Fault.STALE:
            raise
    return await _once(pool, head + body, seconds, fresh=True)


async def _once(pool: Pool, request: bytes, seconds: float, *, fresh: bool) -> Answer:
    wait = _Wait()
    async with Patience(seconds):
        sending = pool.send([request], wait, fresh=fresh)
        try:
            return await wait.answer
        finally:
            if not wait.over:
                sending.withdraw()


@functools.lru_cache(maxsize=64)
def request_line(target: str, method: str = "POST") -> bytes:
    """The first line of a request."""
    return b"%b %b HTTP/1.1\r\n" % (method.encode("ascii"), target.encode("ascii"))


def request_head(method: str, target: str, authority: bytes, headers: Headers, length: int) -> bytes:
    """The request's head, with its empty line. `length` of the body (0: none is sent)."""
    lines = [request_line(target, method), b"host: %b\r\n" % authority]
    lines += [b"%b: %b\r\n" % pair for pair in headers]
    if length:
        lines.append(b"content-type: application/json\r\ncontent-length: %d\r\n" % length)
    elif method == "POST":
        lines.append(b"content-length: 0\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)


class _Wait(Receiver):
    """A receiver that collects a whole response."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.over = False
        self._status = 0
        self._headers: Headers = []
        self._parts: list[bytes] = []
        self._size = 0

    def on_head(self, status: int, headers: Headers) -> None:
        self._status, self._headers = status, headers

    def on_data(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > MAX_BYTES:
            if not self.answer.done():
                self.answer.set_exception(FetchError(Fault.BROKEN, f"its answer is over {MAX_BYTES} bytes"))
            return
        self._parts.append(data)

    def on_end(self) -> None:
        self.over = True
        if not self.answer.done():
            self.answer.set_result(Answer(self._status, self._headers, b"".join(self._parts)))

    def on_failed(self, fault: Fault, message: str) -> None:
        self.over = True
        if not self.answer.done():
            self.answer.set_exception(FetchError(fault, f"it {message}"))
