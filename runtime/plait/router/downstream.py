"""The client's side of a request: reading its body, and writing the answer at the client's pace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

from starlette.types import Receive, Scope, Send

from plait.router.connection import SCOPE_KEY, ClientConnection
from plait.router.errors import RouterError
from plait.router.sse import error_event

REQUEST_ID_HEADER = b"x-request-id"
# Statuses after which the rest of the request is unread: the connection cannot carry another one.
_CLOSE_AFTER = frozenset((408, 413, 415))


class ClientGoneError(Exception):
    """The client left, or reads nothing any more: nobody is there to be answered."""


class Client:
    """One request's client, on a `ClientConnection`. Not shared between requests.

    `started`: the answer's head is out, so a failure can only be told inside the stream. `status`: of the
    answer's head.
    """

    __slots__ = (
        "_connection",
        "_receive",
        "_scope",
        "_send",
        "_stall",
        "_tail",
        "request_id",
        "started",
        "started_at",
        "status",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send, *, stall: float) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._stall = stall
        self._tail = b""
        self._connection: ClientConnection = scope[SCOPE_KEY]
        self.request_id = ""
        self.started = False
        self.started_at: float | None = None  # time.perf_counter() when the head went out
        self.status = 0

    @property
    def gone(self) -> bool:
        """Whether the connection is closed."""
        return self._connection.lost

    def on_gone(self, told: Callable[[], None] | None) -> None:
        """Call `told` once the client has left (at once if it has); None: no more."""
        if told is not None and self._connection.lost:
            told()
        else:
            self._connection.on_lost = told

    def stop_waiting(self) -> None:
        """Close the connection if its client is the one who keeps the answer from going on."""
        if self._connection.write_paused:
            self._connection.abort()

    async def read_body(self, *, limit: int, seconds: float) -> bytes:
        """The whole request body. Raises RouterError (413, 415, 408) or ClientGoneError."""
        for name, value in self._scope["headers"]:
            if name == b"content-encoding" and value.lower() not in (b"identity", b""):
                raise RouterError(415, "Send the request body without a Content-Encoding.", code="encoding")
            if name == b"content-length" and value.isdigit() and int(value) > limit:
                raise _too_large(limit)
        message = await self._body_part(None if self._connection.body_arrived else seconds)
        body: bytes = message.get("body", b"")
        if not message.get("more_body"):
            if len(body) > limit:
                raise _too_large(limit)
            return body
        parts, size = [body], len(body)
        try:
            async with asyncio.timeout(seconds):
                while message.get("more_body"):
                    message = await self._body_part(None)
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > limit:
                        raise _too_large(limit)
        except TimeoutError as error:
            raise _late(seconds) from error
        return b"".join(parts)

    async def _body_part(self, seconds: float | None) -> MutableMapping[str, Any]:
        if seconds is None:
            message = await self._receive()
        else:
            try:
                async with asyncio.timeout(seconds):
                    message = await self._receive()
            except TimeoutError as error:
                raise _late(seconds) from error
        if message["type"] == "http.disconnect":
            raise ClientGoneError("the client left while it sent its request")
        return message

    async def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Send the head of the answer."""
        sent = [*headers]
        if self.request_id:
            sent.append((REQUEST_ID_HEADER, self.request_id.encode("latin-1")))
        self.started, self.started_at, self.status = True, time.perf_counter(), status
        await self._send({"type": "http.response.start", "status": status, "headers": sent})

    async def chunk(self, data: bytes) -> None:
        """Send a part of the body; returns when the connection can take more. Raises ClientGoneError."""
        connection = self._connection
        if connection.write_paused:
            await self._until_drained()
        if connection.lost:
            raise ClientGoneError("the client left")
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self._tail = data[-2:] if len(data) > 1 else self._tail[-1:] + data

    async def end(self) -> None:
        """The answer is complete."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def answer(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Send a whole answer."""
        await self.start(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def fail(self, error: RouterError) -> None:
        """Tell the client: as the answer, or in a stream under way as its last event, without [DONE]."""
        if self.started:
            await self.chunk(error_event(error, after=self._tail))
            await self.end()
            return
        headers = error.head()
        if error.status in _CLOSE_AFTER:
            headers.append((b"connection", b"close"))
        await self.answer(error.status, headers, error.body())

    async def _until_drained(self) -> None:
        try:
            async with asyncio.timeout(self._stall):
                await self._connection.drained()
        except TimeoutError as error:
            # What is buffered would keep the connection, and its memory, for as long as the client likes.
            self._connection.abort()
            raise ClientGoneError(f"the client read nothing for {self._stall:g} s") from error


def _too_large(limit: int) -> RouterError:
    return RouterError(
        413, f"The request body is over {limit} bytes, which is this router's limit.", code="body_too_large"
    )


def _late(seconds: float) -> RouterError:
    return RouterError(408, f"The request body did not arrive within {seconds:g} s.", code="body_timeout")
