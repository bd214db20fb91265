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


class Said(NamedTuple):
    """An error inside a stream. `keep`: bytes of the piece at hand up to the end of its event."""

    error: EngineError
    keep: int


class EventScan:
    """Watches a stream that is passed on as it is: is it complete, does an error hide in it?

    `done` is set once `data: [DONE]` was read: a stream that ends without it was cut off. Most pieces cost
    two searches and no parsing.
    """

    __slots__ = ("_rest", "_skipping", "done")

    def __init__(self) -> None:
        self._rest = b""
        self._skipping = False
        self.done = False

    def feed(self, piece: bytes) -> Said | None:
        """Look into the next bytes; the first error in the events that they complete."""
        held = len(self._rest)
        data = self._rest + piece if held else piece
        last = data.rfind(b"\n\n")
        if last < 0:
            self._hold(data)
            return None
        end = last + 2
        start = 0
        if self._skipping:
            self._skipping = False
            start = data.find(b"\n\n") + 2
        said = _first_error(data, start, end, held) if may_hide_error(data) else None
        # [DONE] is a stream's last event, so what comes before it need not be cut into events.
        before = data.rfind(b"\n\n", 0, last)
        if data[before + 2 if before >= 0 else 0 : last].strip() == b"data: [DONE]":
            self.done = True
        self._rest = b""
        if end < len(data):
            self._hold(data[end:])
        return said

    def close(self) -> Said | None:
        """The end of the stream, which completes an event that no empty line ended."""
        return self.feed(b"\n\n") if self._rest else None

    def _hold(self, rest: bytes) -> None:
        if len(rest) > MAX_EVENT_BYTES:
            self._skipping, rest = True, rest[-1:]
        self._rest = rest


def payloads(block: bytes) -> list[bytes]:
    """Payloads of the complete `data:` events in `block`, `[DONE]` left out."""
    found = []
    for event in block.split(b"\n\n"):
        event = event.lstrip(b"\r\n")
        if event.startswith(b"data:"):
            payload = event[5:].strip()
            if payload != DONE:
                found.append(payload)
    return found


def _first_error(data: bytes, start: int, end: int, held: int) -> Said | None:
    while start < end:
        close = data.find(b"\n\n", start)
        event = data[start:close].lstrip(b"\r\n")
        if event.startswith(b"data:") and (error := hidden_error(event[5:].strip())):
            return Said(error, close + 2 - held)
        start = close + 2
    return None


class EventCutter:
    """Cuts a stream of bytes into the payloads of its `data:` events, for streams that are written anew."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """Payloads of the events that `piece` completes, `[DONE]` left out."""
        data = self._rest + piece
        end = data.rfind(b"\n\n") + 2
        if end == 1:
            self._rest = data
            return []
        self._rest = data[end:]
        return payloads(data[:end])

    def close(self) -> list[bytes]:
        """Payload of an event that the end of the stream completes."""
        return self.feed(b"\n\n")


def error_event(error: RouterError, *, after: bytes = b"\n\n") -> bytes:
    """`error` as an event. `after`: the last bytes sent, so that a torn event is closed before this one."""
    gap = b"" if not after or after.endswith(b"\n\n") else b"\n\n"
    return gap + b"data: " + error.body() + b"\n\n"
