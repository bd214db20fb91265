"""One leg: a request to one engine, and what it has answered so far. No task and no timer of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from plait.router.answers import EngineError, hidden_error, stated_error
from plait.router.config import Deadlines
from plait.router.errors import SERVER_ERROR, RouterError
from plait.router.pairing import Side
from plait.router.sse import CONTENT_TYPE, EventScan
from plait.router.upstream.connection import Buffer, Fault, Headers, Receiver
from plait.router.upstream.pool import Sending
from plait.router.workers import Worker

if TYPE_CHECKING:
    from plait.router.spans import LegTrace

_MAX_ERROR_BYTES = 64 << 10
# What a client has not taken yet, per stream, before the engine is made to wait.
_HIGH_WATER = 256 << 10


class FailureKind(StrEnum):
    """How a leg failed: label of a metric, and end of the error's `code`."""

    REFUSED = "refused"
    STALE = "stale"
    STATUS = "status"
    TIMEOUT = "timeout"
    BROKEN = "broken"
    ABORTED = "aborted"
    TOO_LARGE = "too_large"


class RawAnswer(RouterError):  # noqa: N818 (an answer, raised like the errors it stands beside)
    """An engine's own 4xx, handed to the client byte for byte."""

    def __init__(self, status: int, headers: Headers, body: bytes) -> None:
        super().__init__(status, "the engine refused the request", code="engine_refused")
        self._headers = headers
        self._body = body
        # Only what the engine itself said.
        self.retry_after = None

    def head(self) -> Headers:
        """The engine's content type and Retry-After."""
        kept = [pair for pair in self._headers if pair[0] in (b"content-type", b"retry-after")]
        return kept or [(b"content-type", b"application/json")]

    def body(self) -> bytes:
        """The engine's bytes."""
        return self._body


class LegError(Exception):
    """A leg failed. `error` is the answer that a client gets for it, `logged` what a log may say."""

    def __init__(
        self,
        side: Side,
        kind: FailureKind,
        message: str,
        *,
        said: EngineError | None = None,
        error: RouterError | None = None,
    ) -> None:
        super().__init__(message)
        self.side = side
        self.kind = kind
        self.error = error or _client_error(side, kind, message, said)
        # An engine's own words may quote the prompt.
        quotes = said is not None or isinstance(error, RawAnswer)
        status = said.status if said is not None else self.error.status
        self.logged = f"{kind}, HTTP {status or 200}" if quotes else message

    @property
    def to_blame(self) -> bool:
        """Whether the engine is at fault: not the request, and not a load that it has no room for."""
        # A kept connection may be closed at any time, and an answer too large is the router's own limit.
        innocent = self.kind in (FailureKind.STALE, FailureKind.TOO_LARGE)
        return self.error.status >= 500 and self.error.status != 503 and not innocent

    @property
    def retryable(self) -> bool:
        """Whether another pair may do better."""
        return self.error.status >= 500

    @classmethod
    def said(cls, side: Side, said: EngineError, *, kind: FailureKind) -> LegError:
        """The engine itself said what is wrong, inside an answer that began well."""
        return cls(side, kind, said.message, said=said)


class LegOwner:
    """Whoever waits for legs. Called from within the loop's callbacks: must not block."""

    def leg_moved(self, leg: Leg) -> None:
        """It has something to take, or has ended well."""
        raise NotImplementedError

    def leg_failed(self, leg: Leg) -> None:
        """`leg.failure` is set."""
        raise NotImplementedError


class Leg(Receiver):
    """One side of one request.

    `due`: loop time by which the engine has to have done what it is waited for (`inf`: it is not waited
    for), for the owner's timer. `answer`: the whole body, once `done`, of a response that is no stream.
    `limit`: bytes of its answer; `clock`: the loop's; `work`: what it adds to its worker's load.
    """

    # Defaults of the class: a leg of the usual kind changes few of them.
    status = 0
    streamed = False
    done = False
    answer = b""
    said: EngineError | None = None
    failure: LegError | None = None
    sending: Sending | None = None
    trace: LegTrace | None = None
    due = inf
    waits_for = ""
    started_at = 0.0
    first_at = 0.0
    ended_at = 0.0
    _scan: EventScan | None = None
    _size = 0
    _paused = False

    def __init__(
        self,
        worker: Worker,
        rids: tuple[str, ...],
        owner: LegOwner,
        deadlines: Deadlines,
        limit: int,
        clock: Callable[[], float],
        *,
        relay: bool,
        work: float = 0.0,
    ) -> None:
        self.worker = worker
        self.rids = rids
        self.headers: Headers = []
        self.relayed = relay  # a stream's bytes are wanted, not only whether it is well
        self._work = work
        self._owner = owner
        self._idle = deadlines.idle
        self._first_byte = deadlines.first_byte
        self._limit = limit
        self._parts: list[bytes] = []
        self._time = clock

    @property
    def side(self) -> Side:
        """Whose leg."""
        return self.worker.side

    @property
    def open(self) -> bool:
        """Whether its engine may still be at work on it."""
        return self.sending is not None

    def start(self, pieces: list[Buffer], *, fresh: bool = False) -> None:
        """Send a request, head and body.

        The worker, which counts it already, does so until it ends or is closed.
        """
        self.started_at = self._time()
        self.due = self.started_at + self._first_byte
        self.waits_for = "the first byte of its answer"
        self.sending = self.worker.pool.send(pieces, self, fresh=fresh)

    def close(self) -> None:
        """Close its connection, which an engine takes as "client gone". Nothing is called any more."""
        sending = self.sending
        if sending is not None:
            self._over()
            sending.withdraw()

    def expire(self) -> None:
        """The deadline has passed: fail."""
        self.close()
        self._fail(FailureKind.TIMEOUT, f"The {self.side} engine is late: waited for {self.waits_for}.")

    def forgive(self) -> None:
        """It failed through no fault of its own engine."""
        self.failure = None

    def dissolve(self) -> None:
        """It is over, and nobody will look at it: leave no cycle for the garbage collector."""
        self._owner = _NOBODY

    def fail_said(self) -> LegError:
        """The error that its stream holds becomes the leg's failure."""
        assert self.said is not None
        self.close()
        return self._fail_with(LegError.said(self.side, self.said, kind=FailureKind.ABORTED))

    def fail_broken(self, message: str) -> LegError:
        """What it answered cannot be used."""
        self.close()
        return self._fail(FailureKind.BROKEN, message)

    def take(self) -> bytes:
        """The bytes of a relayed stream that came since the last call."""
        parts = self._parts
        if not parts:
            return b""
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self._size = 0
        if self._paused:
            self._paused = False
            sending = self.sending
            # Where the stream has ended meanwhile, nothing is due, and its connection is not this leg's.
            if sending is not None and sending.connection is not None:
                self.due = self._time() + self._idle
                sending.connection.resume()
        return data

    # upstream.connection.Receiver

    def on_head(self, status: int, headers: Headers) -> None:
        self.status, self.headers = status, headers
        self.first_at = self._time()
        self.due = self.first_at + self._idle
        self.waits_for = "the rest of its answer"
        if status == 200:
            for name, value in headers:
                if name == b"content-type" and value.startswith(CONTENT_TYPE):
                    self.streamed, self._scan = True, EventScan()
                    self.waits_for = "the next event of its stream"

    def on_data(self, data: bytes) -> None:
        if not self._paused:
            self.due = self._time() + self._idle
        scan = self._scan
        if scan is not None:
            self._stream(scan, data)
            return
        self._size += len(data)
        if self.status != 200:
            if self._size <= _MAX_ERROR_BYTES:
                self._parts.append(data)
            return
        if self._size > self._limit:
            self.close()
            self._fail(FailureKind.TOO_LARGE, f"The {self.side} engine's answer is over {self._limit} bytes.")
            return
        self._parts.append(data)

    def on_end(self) -> None:
        self._over()
        if self.status != 200:
            self._fail_with(_stated(self.side, self.status, self.headers, b"".join(self._parts)))
        elif self._scan is not None:
            self._end_stream(self._scan)
        else:
            parts = self._parts
            self.answer = parts[0] if len(parts) == 1 else b"".join(parts)
            self._parts = []
            if said := hidden_error(self.answer):
                self._fail_with(LegError.said(self.side, said, kind=FailureKind.ABORTED))
            else:
                self.done = True
                self._owner.leg_moved(self)

    def on_failed(self, fault: Fault, message: str) -> None:
        self._over()
        self._fail(FailureKind(fault.value), f"The {self.side} engine {message}.")

    # Streams.

    def _stream(self, scan: EventScan, data: bytes) -> None:
        if scan.clean(data):
            if self.relayed and self.said is None:
                self._pass_on(data)
            return
        events, error = scan.feed(data)
        if not self.relayed:
            if error is not None:
                self.close()
                self._fail_with(LegError.said(self.side, error, kind=FailureKind.ABORTED))
            return
        if self.said is not None or not events:
            return  # what follows an error is not passed on
        self.said = error
        self._pass_on(events)

    def _pass_on(self, events: bytes) -> None:
        self._parts.append(events)
        self._size += len(events)
        if self._size > _HIGH_WATER and not self._paused:
            sending = self.sending
            if sending is not None and sending.connection is not None:
                sending.connection.pause()
                # The client is slow now, not the engine.
                self._paused, self.due = True, inf
        self._owner.leg_moved(self)

    def _end_stream(self, scan: EventScan) -> None:
        events, error = scan.close()
        if error is not None and self.said is None:
            if not self.relayed:
                self._fail_with(LegError.said(self.side, error, kind=FailureKind.ABORTED))
                return
            self.said = error
        if not scan.done and self.said is None:
            self._fail(FailureKind.BROKEN, f"The {self.side} engine's stream ended before it was complete.")
            return
        if events:
            self._parts.append(events)
        self.done = True
        self._owner.leg_moved(self)

    # The end.

    def _over(self) -> None:
        # First of all: a connection that goes back to its pool must not be closed by this leg any more.
        self.sending = None
        self.due = inf
        self.ended_at = self._time()
        self.worker.leave(len(self.rids), self._work)
        if self.trace is not None:
            asyncio.get_running_loop().call_soon(self._end_trace)

    def _end_trace(self) -> None:
        # In the next turn: only then is the failure, if there is one, known.
        assert self.trace is not None
        error = str(self.failure.kind) if self.failure is not None else ("" if self.done else "cancelled")
        self.trace.end(monotonic(), status=self.status, error=error)

    def _fail(self, kind: FailureKind, message: str) -> LegError:
        return self._fail_with(LegError(self.side, kind, message))

    def _fail_with(self, error: LegError) -> LegError:
        self.failure = error
        self.done = False
        self._owner.leg_failed(self)
        return error


class _Nobody(LegOwner):
    """Hears nothing."""

    def leg_moved(self, leg: Leg) -> None: ...

    def leg_failed(self, leg: Leg) -> None: ...


_NOBODY = _Nobody()


def _stated(side: Side, status: int, headers: Headers, body: bytes) -> LegError:
    said = stated_error(body, status=status)
    if 400 <= status < 500 and status not in (401, 403):
        return LegError(side, FailureKind.STATUS, said.message, error=RawAnswer(status, headers, body))
    if status in (401, 403):
        # Not the client's fault: engines see the router's key, never the client's.
        return LegError(
            side,
            FailureKind.STATUS,
            f"The {side} engine does not accept the router's key (HTTP {status}): check --engine-api-key.",
        )
    return LegError.said(side, said, kind=FailureKind.STATUS)


def _client_error(side: Side, kind: FailureKind, message: str, said: EngineError | None) -> RouterError:
    """4xx and "busy" (503) of an engine go to the client as they are; other failures are a bad gateway."""
    code = f"{side}_{kind}"
    if said is not None and (400 <= said.status < 500 or said.status == 503):
        type_ = said.type if said.status < 500 else SERVER_ERROR
        return RouterError(said.status, message, code=code, param=said.param, type=type_)
    if said is not None:
        return RouterError(502, f"The {side} engine failed: {message}", code=code)
    return RouterError(504 if kind is FailureKind.TIMEOUT else 502, message, code=code)
