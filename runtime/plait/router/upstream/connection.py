"""One HTTP/1.1 connection to an engine, as callbacks: what arrives is handed on in the same turn of the loop.

No task, future or timer lives here: a receiver is called with the head, each piece of the body, the end or
the failure, and whoever owns the receiver keeps the deadlines. Parsing is httptools' (llhttp).
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import cast

import httptools

# An engine's response head is some hundred bytes; garbage and endless heads end here.
MAX_HEAD_BYTES = 64 << 10

# Later than this after a request, an engine that closes a kept connection has seen the request.
_STALE_SECONDS = 0.5

Headers = list[tuple[bytes, bytes]]
Buffer = bytes | memoryview


class Fault(StrEnum):
    """How a connection failed."""

    REFUSED = "refused"  # no connection came about: nothing was sent
    STALE = "stale"  # a kept connection was closed just as it was used, before any byte of the answer
    BROKEN = "broken"  # closed or garbage after that


class Receiver:
    """Gets one response. After `on_end` or `on_failed` nothing is called any more.

    Each method may close the connection; none may block.
    """

    def on_head(self, status: int, headers: Headers) -> None:
        """Status line and headers (names in lower case)."""
        raise NotImplementedError

    def on_data(self, data: bytes) -> None:
        """The next bytes of the body, transfer coding removed; never empty."""
        raise NotImplementedError

    def on_end(self) -> None:
        """The response is complete, the connection already back with its pool."""
        raise NotImplementedError

    def on_failed(self, fault: Fault, message: str) -> None:
        """The response will not be completed; the connection is closed."""
        raise NotImplementedError


class Owner:
    """Hears what becomes of a connection: the pool."""

    def now(self) -> float:
        """The loop's time."""
        raise NotImplementedError

    def opened(self, connection: Connection) -> None:
        """It stands."""
        raise NotImplementedError

    def kept(self, connection: Connection) -> None:
        """A response ended on it, and another request may follow."""
        raise NotImplementedError

    def lost(self, connection: Connection) -> None:
        """It is closed."""
        raise NotImplementedError


class Connection:
    """One connection; carries one request at a time (no pipelining).

    An asyncio protocol, and the parser's, by its methods alone, so that it can be compiled.
    """

    def __init__(self, owner: Owner) -> None:
        self.transport: asyncio.Transport | None = None
        self.served = 0  # responses completed
        self.idle_since = 0.0
        self._owner = owner
        self._receiver: Receiver | None = None
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._headers: Headers = []
        self._body: list[bytes] = []
        self._head_bytes = 0
        self._status = 0
        self._sent_at = 0.0
        self._headers_done = self._informational = self._complete = self._excess = False
        self._framed = self._keep = False

    # Ours.

    @property
    def usable(self) -> bool:
        """Whether a request may be sent on it now, as far as this side knows."""
        return self.transport is not None and self._receiver is None and not self.transport.is_closing()

    def request(self, pieces: list[Buffer], receiver: Receiver) -> None:
        """Send a request, head and body in `pieces`; `receiver` gets the response."""
        assert self._receiver is None, "one request at a time"
        assert self.transport is not None
        self._receiver = receiver
        self._headers = []
        self._head_bytes = self._status = 0
        self._sent_at = self._owner.now()
        self._headers_done = self._informational = self._complete = self._excess = self._framed = False
        if len(pieces) == 1:
            self.transport.write(pieces[0])
        else:
            self.transport.writelines(pieces)

    def close(self) -> None:
        """Close; the receiver, if one waits, hears nothing any more."""
        self._receiver = None
        if self.transport is not None:
            # Not close(): what is still to be sent would be sent first, for an answer that nobody wants.
            self.transport.abort()

    def pause(self) -> None:
        """Read no more until `resume`: the engine feels the client's pace."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read again; nothing where it does."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    # asyncio's.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have all methods of asyncio.Transport, but are none.
        self.transport = cast(asyncio.Transport, transport)
        self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        receiver, parser = self._receiver, self._parser
        if receiver is None or parser is None:
            # Bytes that no request asked for: whatever they are, the next answer must not begin with them.
            self.close()
            return
        if not self._headers_done:
            self._head_bytes += len(data)
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(Fault.BROKEN, "switched protocols")
            return
        except httptools.HttpParserError as error:
            if not self._serves(receiver):
                return
            if not self._complete:
                self._fail(Fault.BROKEN, f"answered with what is not HTTP ({type(error).__name__})")
                return
            # The answer is whole; what follows it, in the same piece by chance, only ends the connection.
            self._excess = True
        if not self._headers_done and self._head_bytes > MAX_HEAD_BYTES:
            self._fail(Fault.BROKEN, f"sent a response head of over {MAX_HEAD_BYTES} bytes")
            return
        if not self._serves(receiver):
            return
        body = self._body
        if body:
            piece = body[0] if len(body) == 1 else b"".join(body)
            body.clear()
            receiver.on_data(piece)
            if not self._serves(receiver):
                return
        if self._complete:
            self._end(receiver)

    def _serves(self, receiver: Receiver) -> bool:
        """Whether `receiver` still waits, which each of its callbacks may have changed.

        Compared here and not in place: types narrow by such a comparison, and compiled code then reads the
        attribute as what it can no longer be, though a callback has emptied it meanwhile.
        """
        return self._receiver is receiver

    def eof_received(self) -> None:
        """No more comes: `connection_lost` follows at once."""

    def pause_writing(self) -> None:
        """A request's body is in memory anyway, and is the only one that waits here."""

    def resume_writing(self) -> None:
        """It has gone out."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.lost(self)
        receiver = self._receiver
        self._parser = None  # breaks the cycle with its callbacks
        if receiver is None:
            return
        self._receiver = None
        if self._headers_done and not self._framed and exc is None:
            receiver.on_end()
        elif self.served and not self._head_bytes and self._owner.now() - self._sent_at < _STALE_SECONDS:
            receiver.on_failed(Fault.STALE, "closed a kept connection")
        else:
            receiver.on_failed(Fault.BROKEN, _how(exc))

    # httptools'.

    def on_message_begin(self) -> None:
        if self._complete and not self._informational:
            self._excess = True
        self._informational = False

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-length" or (name == b"transfer-encoding" and value.lower() == b"chunked"):
            self._framed = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        if self._excess:
            return
        status = self._parser.get_status_code()
        if status < 200:
            self._informational = True
            self._headers, self._framed = [], False
            return
        self._headers_done, self._status = True, status
        if status in (204, 304):
            self._framed = True
        receiver = self._receiver
        if receiver is not None:
            receiver.on_head(status, self._headers)

    def on_body(self, data: bytes) -> None:
        if not self._excess:
            self._body.append(data)

    def on_message_complete(self) -> None:
        assert self._parser is not None
        if self._informational or self._excess:
            return
        self._complete = True
        self._keep = self._parser.should_keep_alive() and self._framed

    # The end of a response.

    def _end(self, receiver: Receiver) -> None:
        self._receiver = None
        self.served += 1
        if self._keep and not self._excess:
            # Its last bytes may have come just as the client fell behind: the next request needs a reader.
            self.resume()
            self._owner.kept(self)
        else:
            self.close()
        receiver.on_end()

    def _fail(self, fault: Fault, message: str) -> None:
        receiver = self._receiver
        self.close()
        if receiver is not None:
            receiver.on_failed(fault, message)


def _how(exc: Exception | None) -> str:
    if exc is None:
        return "closed the connection before its answer was complete"
    return f"broke off ({type(exc).__name__})"
