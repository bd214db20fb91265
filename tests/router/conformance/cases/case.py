"""One malformed request: what is sent, and what must come back."""

from __future__ import annotations

from typing import Literal, NamedTuple

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
GENERATE = "/generate"

# What the connection must do after the answer. "usable": the next request on it is answered. "closed": the
# server ends it, since nobody can tell where the next request would begin (or it is not worth reading on).
# "as it says": one of the two, and the answer's Connection header tells which.
After = Literal["usable", "closed", "as it says"]


class Case(NamedTuple):
    """`sent`: raw bytes of one connection. `status`: each of these is right.

    `param`, `code`: what the error must name; None: not looked at. `says`: words the message must hold.
    """

    sent: bytes
    status: tuple[int, ...]
    after: After
    param: str | None = None
    code: str | None = None
    says: tuple[str, ...] = ()
    method: str = "POST"
