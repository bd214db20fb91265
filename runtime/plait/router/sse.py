"""Server-sent events: reading an engine's stream as it passes through, and writing an error as one."""

from __future__ import annotations

from typing import NamedTuple

from plait.router.answers import EngineError, hidden_error, may_hide_error
from plait.router.errors import RouterError

CONTENT_TYPE = b"text/event-stream"
DONE = b"[DONE]"
DONE_EVENT = b"data: [DONE]\n\n"
# Longer events are passed on all the same, but not looked into.
MAX_EVENT_BYTES = 8 << 20


class Piece(NamedTuple):
    """What may be passed on: whole events. `error`: in the last of them, if one is there."""

    events: bytes
    error: EngineError | None = None


class EventScan:
    """Watches a stream that is passed on as it is: is it complete, does an error hide in it?

    Whole events are passed on and torn ones held back, so that a stream that breaks off ends between two
    events. `done` is set once `data: [DONE]` was read: a stream that ends without it was cut off. Most pieces
    cost a few searches and no parsing. Lines end with LF, as engines write them, or all with CRLF.
    """

    __slots__ = ("_end", "_open", "_rest", "done")

    def __init__(self) -> None:
        self._end = b"\n\n"
        self._rest = b""
        self._open = False  # in an event that is too long to be held back
        self.done = False

    def clean(self, piece: bytes) -> bool:
        """Whether `piece` is whole events behind whole events, with nothing in them to be looked at.

        `feed` would then give it back as it is, which most pieces are spared.
        """
        return (
            not self._rest and piece.endswith(self._end) and not may_hide_error(piece) and DONE not in piece
        )

    def feed(self, piece: bytes) -> Piece:
        """The events that `piece` completes, up to the first error."""
        data = self._rest + piece if self._rest else piece
        last = data.rfind(self._end)
        if last < 0:
            if b"\r\n\r\n" in data and not self.done:
                self._end = b"\r\n\r\n"
                self._rest = b""
                return self.feed(data)
            return self._hold(data)
        end = last + len(self._end)
        self._rest, self._open = data[end:], False
        events = data if end == len(data) else data[:end]
        if may_hide_error(events):
            found = self._search(events)
            if found is not None:
                return found
        if not self.done and DONE in events:
            self.done = any(payload == DONE for payload in self._payloads(events))
        return Piece(events)

    def close(self) -> Piece:
        """The end of the stream, which completes an event that no empty line ended."""
        rest = self._rest.strip(b"\r\n")
        if not rest:
            return Piece(b"")
        if self._open or not rest.startswith(b"data:"):
            return Piece(b"")
        payload = rest[5:].strip()
        if payload == DONE:
            self.done = True
            return Piece(self._rest)
        error = hidden_error(payload)
        # Without its empty line no client would take it for an event, and none would raise.
        return Piece(self._rest, None) if error is None else Piece(rest + self._end, error)

    def _hold(self, data: bytes) -> Piece:
        if self._open or len(data) > MAX_EVENT_BYTES:
            # Passed on unseen, but for the bytes that may be the first of its end.
            keep = len(self._end) - 1
            self._open, self._rest = True, data[-keep:]
            return Piece(data[:-keep])
        self._rest = data
        return Piece(b"")

    def _search(self, events: bytes) -> Piece | None:
        start = 0
        while (close := events.find(self._end, start)) >= 0:
            event = events[start:close].lstrip(b"\r\n")
            start = close + len(self._end)
            if event.startswith(b"data:") and (error := hidden_error(event[5:].strip())):
                return Piece(events[:start], error)
        return None

    def _payloads(self, events: bytes) -> list[bytes]:
        found = [event.lstrip(b"\r\n") for event in events.split(self._end)]
        return [event[5:].strip() for event in found if event.startswith(b"data:")]


def payloads(block: bytes) -> list[bytes]:
    """Payloads of the `data:` events in `block` (whole events), `[DONE]` left out."""
    found = [event.lstrip(b"\r\n") for event in block.replace(b"\r\n", b"\n").split(b"\n\n")]
    each = (event[5:].strip() for event in found if event.startswith(b"data:"))
    return [payload for payload in each if payload != DONE]


def error_event(error: RouterError, *, after: bytes = b"\n\n") -> bytes:
    """`error` as an event. `after`: the last bytes sent, so that a torn event is closed before this one."""
    gap = b"" if not after or after.endswith(b"\n\n") else b"\n\n"
    return gap + b"data: " + error.body() + b"\n\n"
