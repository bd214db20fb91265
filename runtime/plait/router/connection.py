"""A client's connection: prompts are taken off its bytes directly, other routes go to the ASGI app.

A request to a prompt route becomes an `Incoming`: no ASGI message, task or event stands between the bytes of
a prompt and the engines. Every other request is served through uvicorn's own request-response cycle, on the
same connection. Beside what uvicorn's connection does there are limits for the open net: deadlines for a
request's head and body, a limit on the head's size, refusals in OpenAI's form.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn, cast
from urllib.parse import unquote

import httptools
import uvicorn
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from plait.router.errors import RouterError
from plait.router.incoming import Headers, Incoming, PromptHandler
from plait.router.standstill import Deadline

log = logging.getLogger("plait.router.connection")

# Requests of one client behind the one that is answered.
_MOST_WAITING = 16
# What a refused client still sends is read and dropped for so many seconds. A socket that is closed over
# unread bytes is reset, and a reset takes the answer from a client that has not read it yet.
_LEAVE_SECONDS = 2.0


class Limits(NamedTuple):
    """Of one request. `head_seconds` and `body_seconds` from the first byte (or the connection's opening)."""

    head_bytes: int = 64 << 10
    head_lines: int = 100
    head_seconds: float = 15.0
    body_seconds: float = 60.0


class ClientConnection:
    """One client's connection: an asyncio protocol, and the parser's, by its methods alone, so that it can be
    compiled. uvicorn's server makes it, with the first four arguments, and calls `shutdown`.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: Limits,
        prompts: Mapping[bytes, PromptHandler],
    ) -> None:
        if not config.loaded:
            config.load()
        self.server_state = server_state
        self.serving: Incoming | None = None  # the prompt that is answered now
        # Whether the client takes less than it is sent. Asked for each chunk, so not a look into `_flow`.
        self.write_paused = False
        self._app: Any = config.loaded_app
        self._app_state = app_state
        self._keep_alive = config.timeout_keep_alive
        self._limits = limits
        self._prompts = prompts
        self._loop = _loop or asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._flow: FlowControl | None = None
        self._parser: httptools.HttpRequestParser | None = _parser(self)
        # The last request that came, and those that wait for their turn before it.
        self._cycle: RequestResponseCycle | None = None
        self._prompt: Incoming | None = None
        self._waiting: deque[RequestResponseCycle | Incoming] = deque()
        self._running: RequestResponseCycle | None = None
        self._answering = False
        # The request that is read.
        self._url = b""
        self._headers: Headers = []
        self._expects_continue = False
        self._hosts = 0
        self._in_head = False
        self._in_body = False
        self._upgrade = False
        self._head_bytes = 0
        self._refused = False
        self._leaving = False
        self._late_timer: Deadline | None = None
        self._idle_timer: asyncio.TimerHandle | None = None

    @property
    def transport(self) -> asyncio.Transport:
        """Once it is made."""
        assert self._transport is not None
        return self._transport

    # asyncio's.

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._flow = FlowControl(transport)
        self.server_state.connections.add(cast(Any, self))
        self._arm(self._limits.head_seconds, self._head_late)

    def data_received(self, data: bytes) -> None:
        if self._refused or self._leaving:
            return
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        # Counted by the piece: the first piece of a request may hold all of its head and more.
        self._head_bytes += len(data)
        parser = self._parser
        assert parser is not None
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._stay(data[upgrade.args[0] :])
            return
        except httptools.HttpParserCallbackError as error:
            if not self._refused:
                log.error("the router failed at a request's head or body", exc_info=error.__context__)
                self._refuse(RouterError(500, "The router failed.", code="router_fault"))
        except httptools.HttpParserError:
            if not self._refused:
                self._refuse(
                    RouterError(400, "This is not HTTP/1.1 as it is specified.", code="malformed_http")
                )
        if self._refused or self._leaving:
            return
        if self._in_head:
            if self._head_bytes > self._limits.head_bytes:
                self._refuse(_head_too_large(f"is over {self._limits.head_bytes} bytes"))
            elif self._late_timer is None:
                # Most requests arrive whole, and need no timer.
                self._arm(self._limits.head_seconds, self._head_late)
            return
        # Of a body, which is no part of the next head.
        self._head_bytes = 0
        if self._in_body and self._late_timer is None:
            self._arm(self._limits.body_seconds, self._body_late)

    def eof_received(self) -> None:
        """The client will send no more: it is taken to have left."""

    def pause_writing(self) -> None:
        assert self._flow is not None
        self.write_paused = True
        self._flow.pause_writing()

    def resume_writing(self) -> None:
        assert self._flow is not None
        self.write_paused = False
        self._flow.resume_writing()
        if self.serving is not None:
            self.serving.drained()

    def connection_lost(self, exc: Exception | None) -> None:
        self.server_state.connections.discard(cast(Any, self))
        self._disarm()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        serving, self.serving, self._prompt = self.serving, None, None
        cycle, self._cycle = self._cycle, None
        self._waiting.clear()
        for told in (cycle, self._running):
            if told is not None:
                told.disconnected = not told.response_complete
                told.message_event.set()
        self._running = None
        self.write_paused = False
        if self._flow is not None:
            self._flow.resume_writing()
        self._parser = None  # breaks the cycle with its callbacks
        if serving is not None:
            serving.lost()

    # httptools'.

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = []
        self._expects_continue = False
        self._hosts = 0
        self._in_head = True

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        headers = self._headers
        if len(headers) >= self._limits.head_lines:
            self._refuse_reading(_head_too_large(f"has over {self._limits.head_lines} headers"))
        name = name.lower()
        if name == b"host":
            self._hosts += 1
        elif name == b"expect" and value.lower() == b"100-continue":
            self._expects_continue = True
        headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body, self._head_bytes = False, True, 0
        self._disarm()
        parser = self._parser
        assert parser is not None
        if self._leaving or self.transport.is_closing():
            # What a client sent behind a request whose answer closes the connection is nobody's.
            self._refused = True
            raise _RefusedError
        version = parser.get_http_version()
        if version not in ("1.1", "1.0"):
            self._refuse_reading(
                RouterError(400, f"HTTP/{version} is not served: use HTTP/1.1.", code="malformed_http")
            )
        if parser.should_upgrade():
            if parser.get_method() == b"CONNECT":
                self._refuse_reading(
                    RouterError(400, "This router is no proxy: CONNECT is not served.", code="malformed_http")
                )
            self._upgrade = True
            return
        hosts = self._hosts
        if hosts != 1 and (hosts or version == "1.1"):
            self._refuse_reading(
                RouterError(400, f"The request has {hosts} Host headers: send one.", code="malformed_http")
            )
        url = self._url
        handler = self._prompts.get(url)
        if handler is None and (b"?" in url or not url.startswith(b"/")):
            handler = self._prompts.get(httptools.parse_url(url).path or b"")
        if handler is None:
            self._prompt = None
            cycle = self._cycle = self._app_cycle(parser, version)
            self._next(cycle)
            return
        self._cycle = None
        prompt = self._prompt = Incoming(
            self,
            handler,
            parser.get_method(),
            self._headers,
            keep_alive=version == "1.1" and parser.should_keep_alive(),
            chunked=version == "1.1",
            expects_continue=self._expects_continue,
        )
        self._next(prompt)

    def on_body(self, data: bytes) -> None:
        prompt = self._prompt
        if prompt is not None:
            prompt.feed(data)
            if not prompt.begun and prompt.size > HIGH_WATER_LIMIT:
                self._pause()
            return
        cycle = self._cycle
        if cycle is None or cycle.response_complete:
            return
        cycle.body += data
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self._pause()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        if self._upgrade:
            return
        self._in_body = False
        self._disarm()
        prompt = self._prompt
        if prompt is not None:
            prompt.arrived()
            return
        cycle = self._cycle
        if cycle is not None and not cycle.response_complete:
            cycle.more_body = False
            cycle.message_event.set()

    def _stay(self, rest: bytes) -> None:
        """The client offers another protocol. Read its request again, without that: the parser takes what
        follows such a head for the other protocol, also where it is the body. (Java's client offers h2c.)
        """
        assert self._parser is not None
        method, version = self._parser.get_method(), self._parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b\r\n" % (method, self._url, version)]
        for name, value in self._headers:
            if name == b"connection" and b"close" in value.lower():
                lines.append(b"connection: close\r\n")
            elif name not in (b"connection", b"upgrade", b"http2-settings"):
                lines.append(b"%b: %b\r\n" % (name, value))
        self._upgrade = False
        self._parser = _parser(self)
        self.data_received(b"".join((*lines, b"\r\n", rest)))

    # Requests in turn.

    def _next(self, request: RequestResponseCycle | Incoming) -> None:
        if not self._answering:
            self._answering = True
            if isinstance(request, Incoming):
                self.serving = request
                request.begin()
            else:
                self._run_app(request)
            return
        # Read on all the same, to a bound: a client that leaves shows only where somebody reads.
        if len(self._waiting) >= _MOST_WAITING:
            self._pause()
        self._waiting.append(request)

    def answered(self) -> None:
        """The answer under way is complete: the next request, if one waits."""
        self.serving = self._running = None
        self._answering = False
        self.server_state.total_requests += 1
        if self._leaving or self.transport.is_closing():
            return
        if self._flow is not None and self._flow.read_paused:
            self._flow.resume_reading()
        if self._waiting:
            request = self._waiting.popleft()
            self._answering = True
            if isinstance(request, Incoming):
                self.serving = request
                # Not at once: a client that pipelines a thousand requests must not cost a thousand frames.
                self._loop.call_soon(request.begin)
            else:
                self._run_app(request)
        else:
            self._idle_timer = self._loop.call_later(self._keep_alive, self._idle)

    def leave(self, *, unread: bool) -> None:
        """The connection's last answer is written: close. `unread`: its client may still be sending."""
        transport = self.transport
        if self._leaving or transport.is_closing():
            return
        if not (unread or self._refused):
            transport.close()
            return
        self._leaving = True
        self._disarm()
        assert self._flow is not None
        self._flow.resume_reading()
        if transport.can_write_eof():  # not under TLS: there the client goes by the answer's length
            transport.write_eof()
        self._arm(_LEAVE_SECONDS, self._left)

    def _left(self) -> None:
        self._late_timer = None
        self.transport.close()

    def shutdown(self) -> None:
        """The server ends: close when what is under way is answered."""
        if not self._answering:
            self.transport.close()
        elif self.serving is not None:
            self.serving.keep_alive = False
        elif self._running is not None:
            self._running.keep_alive = False

    def _idle(self) -> None:
        self._idle_timer = None
        self.transport.close()

    def _pause(self) -> None:
        if self._flow is not None:
            self._flow.pause_reading()

    # Other routes, as uvicorn serves them.

    def _app_cycle(self, parser: httptools.HttpRequestParser, version: str) -> RequestResponseCycle:
        transport = self.transport
        parsed: Any = httptools.parse_url(self._url)  # its stub says bytes where None may be
        raw_path: bytes = parsed.path or b""
        scope: Any = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            "server": get_local_addr(transport),
            "client": get_remote_addr(transport),
            "scheme": "https" if is_ssl(transport) else "http",
            "root_path": "",
            "headers": self._headers,
            "state": self._app_state.copy(),
            "method": parser.get_method().decode("ascii"),
            "path": unquote(raw_path.decode("ascii")),
            "raw_path": raw_path,
            "query_string": parsed.query or b"",
        }
        assert self._flow is not None
        return RequestResponseCycle(
            scope=scope,
            transport=transport,
            flow=self._flow,
            logger=log,
            access_logger=log,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self._expects_continue,
            keep_alive=version == "1.1" and parser.should_keep_alive(),
            on_response=self.answered,
        )

    def _run_app(self, cycle: RequestResponseCycle) -> None:
        self._running = cycle
        task = self._loop.create_task(cycle.run_asgi(self._app), context=contextvars.Context())
        self.server_state.tasks.add(task)
        task.add_done_callback(self.server_state.tasks.discard)

    # Refusals.

    def _arm(self, seconds: float, late: Callable[[], None]) -> None:
        self._late_timer = Deadline(self._loop, seconds, late)

    def _disarm(self) -> None:
        if self._late_timer is not None:
            self._late_timer.cancel()
            self._late_timer = None

    def _head_late(self) -> None:
        self._late_timer = None
        if not self._head_bytes:
            # A connection that never asked for anything is owed nothing.
            if self._transport is not None:
                self._transport.close()
            return
        message = f"The request's head did not arrive within {self._limits.head_seconds:g} s."
        self._refuse(RouterError(408, message, code="head_timeout"))

    def _body_late(self) -> None:
        self._late_timer = None
        if self._cycle is not None and self._cycle.response_complete:
            # It was answered before its body was there.
            self.transport.close()
            return
        message = f"The request's body did not arrive within {self._limits.body_seconds:g} s."
        self._refuse(RouterError(408, message, code="body_timeout"))

    def _refuse_reading(self, error: RouterError) -> NoReturn:
        """As `_refuse`, from within the parser: ends its work."""
        self._refuse(error)
        raise _RefusedError

    def _refuse(self, error: RouterError) -> None:
        """Answer without the app, and close. An answer under way on this connection is cut off instead."""
        self._refused = True
        self._in_head = False
        self._disarm()
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        prompt, cycle = self._prompt, self._cycle
        if prompt is not None and not prompt.response_complete:
            if prompt.more_body:
                prompt.refuse(error)
            else:
                # What is refused came behind this request: its answer is the last.
                prompt.keep_alive = False
            return
        if cycle is not None and not cycle.response_complete:
            if not cycle.more_body:
                cycle.keep_alive = False
                return
            if cycle.response_started:
                transport.close()
                return
            # The body that the app is reading turned out malformed: the app hears that its client left.
            cycle.disconnected = True
            cycle.message_event.set()
        body = error.body()
        lines = [STATUS_LINE[error.status]]
        lines += [b"%b: %b\r\n" % pair for pair in error.head()]
        lines.append(b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body))
        lines.append(body)
        transport.write(b"".join(lines))
        self.leave(unread=True)


def _parser(connection: ClientConnection) -> httptools.HttpRequestParser:
    made = httptools.HttpRequestParser(connection)
    # As uvicorn sets its own: what comes behind a request whose answer closes the connection is let be.
    made.set_dangerous_leniencies(lenient_data_after_close=True)
    return made


def _head_too_large(what: str) -> RouterError:
    return RouterError(
        431, f"The request's head {what}, which is this router's limit.", code="headers_too_large"
    )


class _RefusedError(Exception):
    """Ends the parser's work on a request that was refused while it was read; the parser wraps it."""
