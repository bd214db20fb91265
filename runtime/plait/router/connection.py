"""A client's connection: uvicorn's own, with the limits that a server before the open net needs.

uvicorn has no deadline for a request's head, no limit on its size, answers malformed requests in plain
text, and tells an app that its client left only to a task that waits for it. The four are added here; the
ASGI scope holds the connection as `scope["plait.connection"]`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from plait.router.errors import RouterError

SCOPE_KEY = "plait.connection"


class Limits(NamedTuple):
    """Of one request's head. `head_seconds` from its first byte (or the connection's opening) to its end."""

    head_bytes: int = 64 << 10
    head_lines: int = 100
    head_seconds: float = 15.0


class ClientConnection(HttpToolsProtocol):
    """One client's connection. `on_lost` is called once when it is gone; set per request, by the app."""

    limits = Limits()

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.on_lost: Callable[[], None] | None = None
        self.lost = False
        self._in_head = False
        self._head_bytes = 0
        self._refused = False
        self._head_timer: asyncio.TimerHandle | None = None

    @classmethod
    def limited(cls, limits: Limits) -> type[ClientConnection]:
        """The protocol with other limits."""
        return type("LimitedClientConnection", (cls,), {"limits": limits})

    # For the app.

    @property
    def body_arrived(self) -> bool:
        """Whether the body of the request under way is here in full: to receive it takes no waiting."""
        return not self.cycle.more_body

    @property
    def write_paused(self) -> bool:
        """Whether the client takes less than it is sent."""
        return self.flow.write_paused

    async def drained(self) -> None:
        """Returns when the client has taken enough, or is gone."""
        await self.flow.drain()

    def abort(self) -> None:
        """Close at once, whatever is still to be sent."""
        if self.transport is not None:
            self.transport.abort()

    # asyncio's.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        # Counted by the piece: the first piece of a request may hold all of its head and more.
        self._head_bytes += len(data)
        super().data_received(data)
        if self._refused or not self._in_head:
            return
        if self._head_bytes > self.limits.head_bytes:
            self._refuse(
                RouterError(
                    431,
                    f"The request's head is over {self.limits.head_bytes} bytes, this router's limit.",
                    code="headers_too_large",
                )
            )
        elif self._head_timer is None:
            # Most heads arrive whole, and need no timer.
            self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._disarm()
        super().connection_lost(exc)
        told, self.on_lost = self.on_lost, None
        if told is not None:
            told()

    # httptools'.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast(dict[str, object], self.scope)[SCOPE_KEY] = self
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= self.limits.head_lines:
            self._refuse(
                RouterError(
                    431,
                    f"The request has over {self.limits.head_lines} headers, which is this router's limit.",
                    code="headers_too_large",
                )
            )
            raise _RefusedError
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        self._disarm()
        super().on_headers_complete()

    # uvicorn's.

    def send_400_response(self, msg: str) -> None:
        if not self._refused:
            self._refuse(RouterError(400, f"{msg.rstrip('.')}: malformed HTTP/1.1.", code="malformed_http"))

    def handle_websocket_upgrade(self) -> None:
        self._refuse(RouterError(400, "This router speaks no WebSocket.", code="malformed_http"))

    # The head.

    def _arm(self) -> None:
        self._head_timer = self.loop.call_later(self.limits.head_seconds, self._late)

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _late(self) -> None:
        self._head_timer = None
        if not self._head_bytes:
            # A connection that never asked for anything is owed nothing.
            if self.transport is not None:
                self.transport.close()
            return
        self._refuse(
            RouterError(
                408,
                f"The request's head did not arrive within {self.limits.head_seconds:g} s.",
                code="head_timeout",
            )
        )

    def _refuse(self, error: RouterError) -> None:
        """Answer without the app, and close. An answer under way on this connection is cut off instead."""
        self._refused = True
        self._in_head = False
        self._disarm()
        if self.transport is None or self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            if not self.cycle.more_body:
                # A pipelined request behind the one that is answered now: that answer is the last.
                self.cycle.keep_alive = False
                return
            if self.cycle.response_started:
                self.transport.close()
                return
            # The body that the app is reading turned out malformed: the app hears that its client left.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.on_lost is not None:
                told, self.on_lost = self.on_lost, None
                told()
        body = error.body()
        lines = [STATUS_LINE[error.status]]
        lines += [b"%b: %b\r\n" % pair for pair in error.head()]
        lines.append(b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body))
        lines.append(body)
        self.transport.write(b"".join(lines))
        self.transport.close()


class _RefusedError(Exception):
    """Ends the parser's work on a request that was refused while it was read."""


# httptools wraps it: uvicorn answers 400 for any parser error, which `_refused` makes a no-op.
assert issubclass(httptools.HttpParserCallbackError, httptools.HttpParserError)
