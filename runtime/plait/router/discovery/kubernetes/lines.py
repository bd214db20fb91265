"""Lines out of a stream of bytes that comes in pieces of any size."""

from __future__ import annotations


class LineTooLongError(ValueError):
    """A line is longer than anything the sender should send."""


class LineSplitter:
    """Feed it pieces, get whole lines. Holds at most `limit` bytes of an unfinished one."""

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._held = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that end in this piece, without empty ones. Raises LineTooLongError."""
        head, newline, tail = piece.partition(b"\n")
        self._hold(head)
        if not newline:
            return []
        first = b"".join(self._pieces)
        *middle, rest = tail.split(b"\n")
        self._pieces, self._held = [], 0
        self._hold(rest)
        return [line for line in (first, *middle) if line.strip()]

    def _hold(self, piece: bytes) -> None:
        self._held += len(piece)
        if self._held > self._limit:
            raise LineTooLongError(f"a line of over {self._limit} bytes")
        # Joined once at the line's end: appending to one growing buffer would copy it for each piece.
        self._pieces.append(piece)
