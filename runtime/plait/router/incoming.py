"""One prompt on a client's connection: its head and body as they come in, its answer as it goes out.

Everything happens in the callbacks of the loop; nothing here waits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from plait.router.errors import RouterError
from plait.router.sse import error_event

if TYPE_CHECKING:
    from plait.router.connection import ClientConnection

log = logging.getLogger("plait.router.requests")

Headers = list[tuple[bytes, bytes]]

# A body that is refused is still taken up to here, so that the connection can serve on.
_TAKE_REFUSED = 64 << 10
# Above this, an answer is written without being copied behind its head.
_COPY = 16 << 10
# First lines of chunks by their size; larger ones are not copied into their frame.
_SIZES = [b"%x\r\n" % size for size in range(4096)]


class PromptHandler:
    """What becomes of the prompts of one route. (A base class: calls through protocols are not compiled.)"""

    max_body: int

    def opened(self, incoming: Incoming) -> None:
        """The head is here. Raises RouterError where the request is refused for it."""
        raise NotImplementedError

    def handle(self, incoming: Incoming) -> None:
        """The whole request is here. Must not raise."""
        raise NotImplementedError

    def refused(self, incoming: Incoming, error: RouterError) -> None:
        """It never came to `handle`: `error` was answered."""
        raise NotImplementedError


class Incoming:
    """One request. `body` is whole once `handle` is called.

    `on_gone`: called once when the client has left before its answer was complete. `on_drained`: when it has
    taken what `write_paused` held up. `started`: the answer's head is out, so a failure can only be told
    inside the stream; `started_at` is when (time.perf_counter()); `status` is the answer's. `request_id`,
    `own_id` (the client gave it), `sticky` and `arrived_at` (time.perf_counter()) are its handler's.
    """

    # What the connection looks at.
    disconnected = False
    response_started = False
    response_complete = False
    more_body = True
    # Ours.
    body = b""
    request_id = ""
    own_id = False
    sticky: str | None = None
    arrived_at = 0.0
    status = 0
    started_at: float | None = None
    on_gone: Callable[[], None] | None = None
    on_drained: Callable[[], None] | None = None
    size = 0  # bytes of the body so far
    begun = False  # its turn on the connection has come
    _refusal: RouterError | None = None
    _last = b"\n\n"  # the end of it is what was sent last

    def __init__(
        self,
        connection: ClientConnection,
        handler: PromptHandler,
        method: bytes,
        headers: Headers,
        *,
        keep_alive: bool,
        chunked: bool,
        expects_continue: bool,
    ) -> None:
        self.headers = headers
        self.method = method
        self.keep_alive = keep_alive
        self._connection = connection
        self._transport = connection.transport
        self._handler = handler
        self._chunked = chunked
        self._expects_continue = expects_continue
        self._parts: list[bytes] = []

    # The request.

    @property
    def started(self) -> bool:
        """Whether the head of the answer is out."""
        return self.response_started

    @property
    def gone(self) -> bool:
        """Whether the client has left."""
        return self.disconnected

    def begin(self) -> None:
        """It is this request's turn on its connection."""
        self.begun = True
        if self.disconnected:
            return
        if self._refusal is not None:
            self.refuse(self._refusal)
            return
        try:
            # First of all, for it names the request and knows whether its client may ask at all.
            self._handler.opened(self)
            for name, value in self.headers:
                if name == b"content-length" and value.isdigit() and int(value) > self._handler.max_body:
                    raise self._too_large()
        except RouterError as error:
            if error.status in _CLOSE_AFTER:
                self.refuse(error)
                return
            self._refusal = error
        if self._expects_continue and self.more_body and self._refusal is None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not self.more_body:
            self._handle()

    def feed(self, data: bytes) -> None:
        """The next bytes of the body."""
        if self.response_complete:
            return
        self.size += len(data)
        if self._refusal is not None:
            if self.size > _TAKE_REFUSED:
                self.refuse(self._refusal)
            return
        if self.size > self._handler.max_body:
            self.refuse(self._too_large())
            return
        self._parts.append(data)

    def arrived(self) -> None:
        """The body is complete."""
        if self.response_complete:
            return
        self.more_body = False
        if self.begun:
            self._handle()

    def lost(self) -> None:
        """The connection is closed."""
        self.disconnected = True
        told, self.on_gone = self.on_gone, None
        self.on_drained = None
        if told is not None:
            told()

    def drained(self) -> None:
        """The client has taken enough to be sent more."""
        if self.on_drained is not None:
            self.on_drained()

    def refuse(self, error: RouterError) -> None:
        """Answer `error`, and close the connection: the rest of the request stays unread."""
        self.keep_alive = False
        if not self.begun:
            # The answer to the request before this one is under way.
            self._refusal, self._parts, self.more_body = error, [], False
            return
        if not self.response_started:
            self._handler.refused(self, error)
        self.fail(error)

    def _handle(self) -> None:
        if self._refusal is not None:
            self._handler.refused(self, self._refusal)
            self.fail(self._refusal)
            return
        parts = self._parts
        self.body = parts[0] if len(parts) == 1 else b"".join(parts)
        self._parts = []
        self._handler.handle(self)

    def _too_large(self) -> RouterError:
        return RouterError(
            413,
            f"The request body is over {self._handler.max_body} bytes, which is this router's limit.",
            code="body_too_large",
        )

    # The answer.

    @property
    def write_paused(self) -> bool:
        """Whether the client takes less than it is sent."""
        return self._connection.write_paused

    def abort(self) -> None:
        """Close the connection at once, whatever is still to be sent. `on_gone` is not called."""
        self.on_gone = None
        self.disconnected = True
        self._transport.abort()

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Send the head of an answer whose body comes in pieces."""
        if self._chunked:
            framing = b"transfer-encoding: chunked\r\n"
        else:
            self.keep_alive = False
            framing = b""
        self._write_head(status, headers, framing)

    def chunk(self, data: bytes) -> None:
        """Send a part of the body."""
        if self.disconnected or not data:
            return
        if not self._chunked:
            self._transport.write(data)
        elif len(data) < len(_SIZES):
            self._transport.write(b"".join((_SIZES[len(data)], data, b"\r\n")))
        else:
            self._transport.writelines((b"%x\r\n" % len(data), data, b"\r\n"))
        self._last = data if len(data) > 1 else self._last[-1:] + data

    def end(self) -> None:
        """The answer that `start` began is complete."""
        if self._chunked and not self.disconnected:
            self._transport.write(b"0\r\n\r\n")
        self._complete()

    def answer(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Send a whole answer."""
        self._write_head(status, headers, b"content-length: %d\r\n" % len(body), body)
        self._complete()

    def fail(self, error: RouterError) -> None:
        """Tell the client: as the answer, or in a stream under way as its last event, without [DONE]."""
        if self.response_complete:
            return
        if self.response_started:
            self.chunk(error_event(error, after=self._last[-2:]))
            self.end()
        else:
            if error.status in _CLOSE_AFTER or error.closes:
                self.keep_alive = False
            self.answer(error.status, error.head(), error.body())

    def _write_head(
        self, status: int, headers: Iterable[tuple[bytes, bytes]], framing: bytes, body: bytes = b""
    ) -> None:
        self.response_started, self.status = True, status
        self.started_at = time.perf_counter()
        if self.disconnected:
            return
        lines = [STATUS_LINE[status]]
        lines += [b"%b: %b\r\n" % pair for pair in self._connection.server_state.default_headers]
        lines += [b"%b: %b\r\n" % pair for pair in headers]
        if self.request_id:
            lines.append(b"x-request-id: %b\r\n" % self.request_id.encode("latin-1"))
        lines.append(framing)
        if self.method == b"HEAD":
            body = b""
        lines.append(b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        if len(body) <= _COPY:
            lines.append(body)
            self._transport.write(b"".join(lines))
        else:
            self._transport.writelines((b"".join(lines), body))

    def _complete(self) -> None:
        self.response_complete = True
        self.on_gone = self.on_drained = None
        if not self.keep_alive:
            self._connection.leave(unread=self.more_body)
        self._connection.answered()


# Statuses after which the rest of the request may be unread: the connection cannot carry another one.
_CLOSE_AFTER = frozenset((408, 413, 415, 431))
