"""What can go wrong with a request, as the caller has to tell it apart."""

from __future__ import annotations

import json
from typing import Final

_LONGEST: Final = 600
"""Characters of a server's message that are kept: it ends up in a condition, where 32 KiB is the limit."""


class ApplyError(Exception):
    """A request was not carried out."""


class UnreachableError(ApplyError):
    """No answer: the server is away, the connection broke, or the time was up. It may have been done."""


class FencedError(ApplyError):
    """This process is not, or not surely, the leader: nothing was sent."""


class ApiError(ApplyError):
    """The server refused. `status`: its HTTP code; `reason`, `message`: its own words, cut to a length.

    `retry_after`: seconds that it asked to wait (0: it did not). `ending`: the namespace is being deleted,
    and nothing can be made in it any more, which is nobody's fault.
    """

    def __init__(
        self, status: int, reason: str, message: str, *, retry_after: float = 0.0, ending: bool = False
    ) -> None:
        super().__init__(f"{status} {reason}: {message}" if reason else f"{status}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.ending = ending

    @property
    def passing(self) -> bool:
        """The same request may pass a moment later: an overloaded or failing server."""
        return self.status == 429 or self.status >= 500

    @property
    def missing(self) -> bool:
        """There is no such object (or no such kind)."""
        return self.status == 404

    @property
    def conflict(self) -> bool:
        """Another object or another version stands there than the request was meant for."""
        return self.status == 409


def api_error(status: int, body: bytes, retry_after: str | None) -> ApiError:
    """From an answer that is no success."""
    reason, message, ending = "", "", False
    try:
        told = json.loads(body)
        reason, message = str(told.get("reason") or ""), str(told.get("message") or "")
        causes = (told.get("details") or {}).get("causes") or ()
        ending = any(cause.get("reason") == "NamespaceTerminating" for cause in causes)
    except (ValueError, AttributeError, TypeError):
        message = message or body[:_LONGEST].decode(errors="replace")
    try:
        seconds = max(0.0, float(retry_after or 0))
    except ValueError:  # a date: nobody sends it, and it would need this machine's clock to be right
        seconds = 1.0
    return ApiError(status, reason, short(message) or "no message", retry_after=seconds, ending=ending)


def short(message: str) -> str:
    """In one line, and not longer than a condition can bear."""
    line = " ".join(message.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
