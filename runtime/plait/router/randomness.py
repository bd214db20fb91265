"""Random bytes for rooms and request ids, drawn from the system in large pieces: a draw is a system call."""

from __future__ import annotations

import os

_PIECE = 6144


class _Source:
    """Hands out what the system's generator gave; each byte once."""

    def __init__(self) -> None:
        self._bytes = b""
        self._at = 0

    def take(self, count: int) -> bytes:
        """`count` bytes, at most a piece."""
        end = self._at + count
        if end > len(self._bytes):
            self._bytes, self._at, end = os.urandom(_PIECE), 0, count
        taken = self._bytes[self._at : end]
        self._at = end
        return taken

    def forget(self) -> None:
        """Hand out nothing more of this piece."""
        self._bytes, self._at = b"", 0


_source = _Source()
# A forked process would hand out the same bytes as its parent: the same rooms.
os.register_at_fork(after_in_child=_source.forget)

random_bytes = _source.take
