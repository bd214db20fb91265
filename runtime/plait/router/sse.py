"""Server-sent events: cutting an engine's stream into events, and writing an error as one."""

from __future__ import annotations

from plait.router.errors import RouterError

CONTENT_TYPE = "text/event-stream"
DONE = b"[DONE]"
# Longer events are passed on all the same, but not looked into.
MAX_EVENT_BYTES = 8 << 20


class EventReader:
    """Cuts a stream of bytes into the payloads of its `data:` events.

    `done` is set once `data: [DONE]` was read: a stream that ends without it was cut off.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._skipping = False
        self.done = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Payloads of the events that `chunk` completes, `[DONE]` left out."""
        *blocks, rest = (self._rest + chunk).split(b"\n\n")
        if self._skipping and blocks:
            blocks = blocks[1:]
            self._skipping = False
        if len(rest) > MAX_EVENT_BYTES:
            self._skipping, rest = True, rest[-1:]
        self._rest = rest
        payloads = []
        for block in blocks:
            if not block.lstrip(b"\r\n").startswith(b"data:"):
                continue
            payload = block.lstrip(b"\r\n")[5:].strip()
            if payload == DONE:
                self.done = True
            else:
                payloads.append(payload)
        return payloads

    def close(self) -> list[bytes]:
        """Payloads of an event that the end of the stream completes."""
        return self.feed(b"\n\n")


def error_event(error: RouterError, *, after: bytes = b"\n\n") -> bytes:
    """`error` as an event. `after`: the last bytes sent, so that a torn event is closed before this one."""
    gap = b"" if not after or after.endswith(b"\n\n") else b"\n\n"
    return gap + b"data: " + error.body() + b"\n\n"
