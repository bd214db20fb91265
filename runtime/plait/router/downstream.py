"""The client's side of a request: reading its body, and writing the answer at the client's pace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from starlette.types import Receive, Scope, Send

from plait.router.errors import RouterError
from plait.router.sse import error_event

REQUEST_ID_HEADER = b"x-request-id"
_JSON = (b"content-type", b"application/json")


class ClientGoneError(Exception):
    """The client left, or reads nothing any more: nobody is there to be answered."""


class Client:
    """One request's client. Not shared between requests.

    `started`: the answer's head is out, so a failure can only be told inside the stream.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, *, stall: float) -> None:
        self._scope = scope
        self._receive = receive
        self._send_asgi = send
        self._stall = stall
        self._tail = b""
        self.request_id = ""
        self.started = False
        self.started_at: float | None = None  # time.perf_counter() when the head went out

    async def read_body(self, *, limit: int, seconds: float) -> bytes:
        """The whole request body. Raises RouterError (413, 415, 408) or ClientGoneError."""
        headers = dict(self._scope["headers"])
        if headers.get(b"content-encoding", b"identity").lower() not in (b"identity", b""):
            raise RouterError(415, "Send the request body without a Content-Encoding.", code="encoding")
        too_large = RouterError(
            413,
            f"The request body is over {limit} bytes, which is this router's limit.",
            code="body_too_large",
        )
        declared = headers.get(b"content-length", b"")
        if declared.isdigit() and int(declared) > limit:
            raise too_large
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(seconds):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGoneError("the client left while it sent its request")
                    part = message.get("body", b"")
                    parts.append(part)
                    size += len(part)
                    if size > limit:
                        raise too_large
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError as error:
            raise RouterError(
                408, f"The request body did not arrive within {seconds:g} s.", code="body_timeout"
            ) from error

    async def gone(self) -> None:
        """Returns when the client has left. To be called after `read_body`."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Send the head of the answer."""
        sent = [*headers]
        if self.request_id:
            sent.append((REQUEST_ID_HEADER, self.request_id.encode()))
        self.started, self.started_at = True, time.perf_counter()
        await self._send({"type": "http.response.start", "status": status, "headers": sent})

    async def chunk(self, data: bytes) -> None:
        """Send a part of the body; returns when the connection can take more. Raises ClientGoneError."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self._tail = (self._tail + data)[-2:] if len(data) < 2 else data[-2:]

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
        headers = [_JSON]
        if error.status in (408, 413, 415):
            # The rest of the request is unread: this connection cannot carry another one.
            headers.append((b"connection", b"close"))
        if error.status == 503:
            headers.append((b"retry-after", b"1"))
        await self.answer(error.status, headers, error.body())

    async def _send(self, message: dict[str, object]) -> None:
        try:
            async with asyncio.timeout(self._stall):
                await self._send_asgi(message)
        except TimeoutError as error:
            raise ClientGoneError(f"the client read nothing for {self._stall:g} s") from error
        except OSError as error:
            raise ClientGoneError("the client left") from error
