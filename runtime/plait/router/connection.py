"""A client's connection: uvicorn's own, with limits for the open net, and prompts taken out of ASGI.

uvicorn has no deadline for a request's head and body, no limit on the head's size, and answers malformed
requests in plain text: all three are added. A request to a prompt route becomes an `Incoming`, which takes
the place of uvicorn's request-response cycle: no ASGI message, task or event stands between the bytes of a
prompt and the engines. All other routes go to the ASGI app as ever, also on the same connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from plait.router.errors import RouterError
from plait.router.incoming import Incoming, PromptHandler
from plait.router.reading import Reading

# Requests of one client behind the one that is answered.
_MOST_WAITING = 16


class Limits(NamedTuple):
    """Of one request. `head_seconds` and `body_seconds` from the first byte (or the connection's opening)."""

    head_bytes: int = 64 << 10
    head_lines: int = 100
    head_seconds: float = 15.0
    body_seconds: float = 60.0


class ClientConnection(HttpToolsProtocol):
    """One client's connection."""

    cycle: Any  # uvicorn's, or an Incoming
    limits = Limits()
    prompts: Mapping[bytes, PromptHandler] = {}

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._reading = Reading(self, self.limits.head_lines)
        self.parser = httptools.HttpRequestParser(self._reading)
        # As uvicorn sets its own: what comes behind a request whose answer closes the connection is let be.
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.serving: Incoming | None = None  # the prompt that is answered now
        self._in_head = False
        self._head_bytes = 0
        self._refused = False
        self._late_timer: asyncio.TimerHandle | None = None

    @classmethod
    def configured(
        cls, limits: Limits, prompts: Mapping[bytes, PromptHandler] = {}
    ) -> type[ClientConnection]:
        """The protocol with these limits, and `prompts` by path."""
        return type("ConfiguredConnection", (cls,), {"limits": limits, "prompts": prompts})

    # asyncio's.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm(self.limits.head_seconds, self._head_late)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        # Counted by the piece: the first piece of a request may hold all of its head and more.
        self._head_bytes += len(data)
        super().data_received(data)
        if self._refused:
            return
        if self._in_head:
            if self._head_bytes > self.limits.head_bytes:
                self._refuse(_head_too_large(f"is over {self.limits.head_bytes} bytes"))
            elif self._late_timer is None:
                # Most requests arrive whole, and need no timer.
                self._arm(self.limits.head_seconds, self._head_late)
        elif self._late_timer is None and type(self.cycle) is Incoming and self.cycle.more_body:
            self._arm(self.limits.body_seconds, self._body_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        serving, self.serving = self.serving, None
        super().connection_lost(exc)
        self.pipeline.clear()
        self.cycle = None
        # uvicorn tells the last request that came, which need not be the one that is answered.
        if serving is not None:
            serving.lost()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.serving is not None:
            self.serving.drained()

    # reading.ReadBy

    def begun(self) -> None:
        self._in_head = True

    def too_many_headers(self) -> None:
        self._refuse(_head_too_large(f"has over {self.limits.head_lines} headers"))
        raise _RefusedError

    def head_read(self) -> None:
        self._in_head, self._head_bytes = False, 0
        self._disarm()
        reading, parser = self._reading, self.parser
        self.headers = reading.headers
        if self.transport.is_closing():
            # What a client sent behind a request whose answer closes the connection is nobody's.
            self._refused = True
            raise _RefusedError
        version = parser.get_http_version()
        if version not in ("1.1", "1.0"):
            self._refuse(
                RouterError(400, f"HTTP/{version} is not served: use HTTP/1.1.", code="malformed_http")
            )
            raise _RefusedError
        hosts = reading.hosts
        if hosts != 1 and (hosts or version == "1.1"):
            self._refuse(
                RouterError(400, f"The request has {hosts} Host headers: send one.", code="malformed_http")
            )
            raise _RefusedError
        url = reading.url
        handler = self.prompts.get(url)
        if handler is None and (b"?" in url or not url.startswith(b"/")):
            handler = self.prompts.get(httptools.parse_url(url).path or b"")
        if handler is None:
            super().on_message_begin()
            self.url, self.headers = url, reading.headers
            self.expect_100_continue = reading.expects_continue
            self.scope["headers"] = reading.headers
            super().on_headers_complete()
            return
        before = self.cycle
        incoming = Incoming(
            self,
            handler,
            parser.get_method(),
            reading.headers,
            keep_alive=version != "1.0" and parser.should_keep_alive(),
            chunked=version != "1.0",
            expects_continue=reading.expects_continue,
        )
        self.cycle = reading.prompt = incoming
        if before is None or before.response_complete:
            self.serving = incoming
            incoming.begin()
        else:
            # Read on all the same, to a bound: a client that leaves shows only where somebody reads.
            if len(self.pipeline) >= _MOST_WAITING:
                self.flow.pause_reading()
            self.pipeline.appendleft((incoming, self.app))  # type: ignore[arg-type]

    def body_read(self, data: bytes) -> None:
        super().on_body(data)

    def message_read(self) -> None:
        super().on_message_complete()

    def prompt_waits(self, prompt: Incoming) -> None:
        if prompt.size > HIGH_WATER_LIMIT:
            self.flow.pause_reading()

    def prompt_read(self) -> None:
        self._disarm()

    # uvicorn's.

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if type(cycle) is Incoming:
            self.serving = cycle
            # Not at once: a client that pipelines a thousand requests must not cost a thousand frames.
            self.loop.call_soon(cycle.begin)
        else:
            super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        self.serving = None
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        if not self._refused:
            self._refuse(RouterError(400, f"{msg.rstrip('.')}: malformed HTTP/1.1.", code="malformed_http"))

    def handle_websocket_upgrade(self) -> None:
        self._refuse(RouterError(400, "This router speaks no WebSocket.", code="malformed_http"))

    # Refusals.

    def _arm(self, seconds: float, late: Callable[[], None]) -> None:
        self._late_timer = self.loop.call_later(seconds, late)

    def _disarm(self) -> None:
        if self._late_timer is not None:
            self._late_timer.cancel()
            self._late_timer = None

    def _head_late(self) -> None:
        self._late_timer = None
        if not self._head_bytes:
            # A connection that never asked for anything is owed nothing.
            if self.transport is not None:
                self.transport.close()
            return
        message = f"The request's head did not arrive within {self.limits.head_seconds:g} s."
        self._refuse(RouterError(408, message, code="head_timeout"))

    def _body_late(self) -> None:
        self._late_timer = None
        message = f"The request's body did not arrive within {self.limits.body_seconds:g} s."
        self._refuse(RouterError(408, message, code="body_timeout"))

    def _refuse(self, error: RouterError) -> None:
        """Answer without the app, and close. An answer under way on this connection is cut off instead."""
        self._refused = True
        self._in_head = False
        self._disarm()
        if self.transport is None or self.transport.is_closing():
            return
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if not cycle.more_body:
                # A pipelined request behind the one that is answered now: that answer is the last.
                cycle.keep_alive = False
                return
            if cycle.response_started:
                self.transport.close()
                return
            if type(cycle) is Incoming:
                cycle.refuse(error)
                return
            # The body that the app is reading turned out malformed: the app hears that its client left.
            cycle.disconnected = True
            cycle.message_event.set()
        body = error.body()
        lines = [STATUS_LINE[error.status]]
        lines += [b"%b: %b\r\n" % pair for pair in error.head()]
        lines.append(b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body))
        lines.append(body)
        self.transport.write(b"".join(lines))
        self.transport.close()


def _head_too_large(what: str) -> RouterError:
    return RouterError(
        431, f"The request's head {what}, which is this router's limit.", code="headers_too_large"
    )


class _RefusedError(Exception):
    """Ends the parser's work on a request that was refused while it was read."""


# httptools wraps it: uvicorn answers 400 for any parser error, which `_refused` makes a no-op.
assert issubclass(httptools.HttpParserCallbackError, httptools.HttpParserError)
