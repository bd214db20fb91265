"""What can go wrong between the router and the Kubernetes API server."""

from __future__ import annotations


class ApiError(Exception):
    """The API server could not be asked, or refused. The text names the fix where one is known.

    `retry_after`: seconds that the server wants to be left alone for, at least.
    """

    def __init__(self, text: str, *, retry_after: float = 0.0) -> None:
        super().__init__(text)
        self.retry_after = retry_after


class UnreachableError(ApiError):
    """No answer at all: nothing is known of what was missed, and a watch may go on where it was."""


class CutError(UnreachableError):
    """A watch that had begun has ended without a word, or has fallen silent. Happens in good health too."""


class GoneError(ApiError):
    """The API server no longer knows what came after the version asked for (410): a new list is due."""
