"""May this process write now? Asked right before every write."""

from __future__ import annotations

from typing import Protocol

from plait_operator.apply.errors import FencedError


class Fence(Protocol):
    """A right to write that can end at any moment."""

    def check(self) -> None:
        """Raises FencedError when it has ended, or is not known to hold."""
        ...


class NoFence:
    """Where nobody else writes: a single process without an election."""

    def check(self) -> None:
        """Always allowed."""


class Closed:
    """Never allowed."""

    def check(self) -> None:
        """Raises FencedError."""
        raise FencedError("this process is not the leader")
