"""One leg's connection to its engine: sending, reading within deadlines, and naming what went wrong."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator, Iterator
from enum import StrEnum

import aiohttp
from multidict import CIMultiDict

from plait.router.answers import EngineError, stated_error
from plait.router.config import RouterConfig
from plait.router.errors import SERVER_ERROR, RouterError
from plait.router.pairing import Side
from plait.router.workers import Worker

_MAX_ERROR_BYTES = 64 << 10
_MAX_ONE_WRITE = 256 << 10


class FailureKind(StrEnum):
    """How a leg failed: label of a metric, and end of the error's `code`."""

    REFUSED = "refused"
    STATUS = "status"
    TIMEOUT = "timeout"
    BROKEN = "broken"
    ABORTED = "aborted"
    TOO_LARGE = "too_large"


class LegError(Exception):
    """A leg failed. `error` is the answer that a client gets for it."""

    def __init__(
        self, side: Side, kind: FailureKind, message: str, *, said: EngineError | None = None
    ) -> None:
        super().__init__(message)
        self.side = side
        self.kind = kind
        self.error = _client_error(side, kind, message, said)

    @property
    def to_blame(self) -> bool:
        """Whether the engine is at fault, not the request."""
        return self.error.status >= 500

    @classmethod
    def said(cls, side: Side, said: EngineError, *, kind: FailureKind) -> LegError:
        """The engine itself said what is wrong."""
        return cls(side, kind, said.message, said=said)


class Leg:
    """One side of one request: where it goes and what it carries. `rids` are what an abort names."""

    def __init__(
        self, worker: Worker, path: str, headers: CIMultiDict[str], body: bytes, *, rids: tuple[str, ...]
    ) -> None:
        self.worker = worker
        self.side = worker.side
        self.url = worker.url + path
        self.headers = headers
        self.body = body
        self.rids = rids


class Clock:
    """The deadline that a leg runs under, moved on at each step; `expired` names the step that was late."""

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self._timeout = timeout
        self._now = asyncio.get_running_loop().time
        self.waiting_for = ""

    def stop(self) -> None:
        """No deadline while the wait is not for the engine."""
        self._timeout.reschedule(None)

    def allow(self, seconds: float, waiting_for: str) -> None:
        """From now on, `seconds` for what is waited for."""
        self._timeout.reschedule(self._now() + seconds)
        self.waiting_for = waiting_for


def open_session(config: RouterConfig) -> aiohttp.ClientSession:
    """The one client session of a router: no pool limit, no decompression, small read buffers.

    Connections are kept for less time than an engine keeps them (5 s), so that none is used again just as
    the engine closes it.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0, ttl_dns_cache=10),
        timeout=aiohttp.ClientTimeout(total=None, connect=config.deadlines.connect, sock_read=None),
        auto_decompress=False,
        read_bufsize=64 << 10,
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
    )


@contextlib.asynccontextmanager
async def sent(
    session: aiohttp.ClientSession, leg: Leg, config: RouterConfig
) -> AsyncIterator[tuple[aiohttp.ClientResponse, Clock]]:
    """Send `leg`; the block gets the response, with status 200, and the clock to move on.

    Every failure in the block or before it comes out as LegError. Leaving the block with the answer not
    read to its end closes the connection, which an engine takes as "client gone".
    """
    clock: Clock | None = None
    try:
        async with asyncio.timeout(None) as timeout:
            clock = Clock(timeout)
            clock.allow(config.deadlines.first_byte, "the first byte of its answer")
            with _connection_errors(leg.side, config):
                response = await session.post(
                    leg.url, data=_payload(leg.body), headers=leg.headers, allow_redirects=False
                )
                try:
                    if response.status != 200:
                        raise await _stated(leg.side, response)
                    yield response, clock
                finally:
                    # Closes the connection unless the answer was read to its end.
                    response.release()
    except TimeoutError as error:
        late = clock.waiting_for if clock else "its connection"
        raise LegError(
            leg.side, FailureKind.TIMEOUT, f"The {leg.side} engine is late: waited for {late}."
        ) from error


async def read_all(
    response: aiohttp.ClientResponse, clock: Clock, *, side: Side, idle: float, limit: int
) -> bytes:
    """The whole answer, at most `limit` bytes. Raises LegError where it is larger."""
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        clock.allow(idle, "the rest of its answer")
        parts.append(part)
        size += len(part)
        if size > limit:
            raise LegError(side, FailureKind.TOO_LARGE, f"The {side} engine's answer is over {limit} bytes.")
    return b"".join(parts)


def _payload(body: bytes) -> bytes | io.BytesIO:
    # A large body is written piece by piece, at the engine's pace, with the loop free in between.
    return body if len(body) <= _MAX_ONE_WRITE else io.BytesIO(body)


async def _stated(side: Side, response: aiohttp.ClientResponse) -> LegError:
    body = await response.content.read(_MAX_ERROR_BYTES)
    while len(body) < _MAX_ERROR_BYTES and (
        more := await response.content.read(_MAX_ERROR_BYTES - len(body))
    ):
        body += more
    return LegError.said(side, stated_error(body, status=response.status), kind=FailureKind.STATUS)


@contextlib.contextmanager
def _connection_errors(side: Side, config: RouterConfig) -> Iterator[None]:
    try:
        yield
    except aiohttp.ConnectionTimeoutError as error:
        raise LegError(
            side,
            FailureKind.REFUSED,
            f"The {side} engine took no connection within {config.deadlines.connect:g} s.",
        ) from error
    except aiohttp.ClientConnectorError as error:
        raise LegError(side, FailureKind.REFUSED, f"The {side} engine refused the connection.") from error
    except (aiohttp.ClientError, ConnectionError) as error:
        raise LegError(
            side, FailureKind.BROKEN, f"The {side} engine broke off ({type(error).__name__})."
        ) from error


def _client_error(side: Side, kind: FailureKind, message: str, said: EngineError | None) -> RouterError:
    """4xx and "busy" (503) of an engine go to the client as they are; other failures are a bad gateway."""
    code = f"{side}_{kind}"
    if said is not None and (400 <= said.status < 500 or said.status == 503):
        type_ = said.type if said.status < 500 else SERVER_ERROR
        return RouterError(said.status, message, code=code, param=said.param, type=type_)
    if said is not None:
        return RouterError(502, f"The {side} engine failed: {message}", code=code)
    return RouterError(504 if kind is FailureKind.TIMEOUT else 502, message, code=code)
