"""Which headers travel: from a client to both engines, and from the decode engine back."""

from __future__ import annotations

from collections.abc import Container

from plait.router.errors import bad_request
from plait.router.samples.fields import OWNED_HEADERS

Headers = list[tuple[bytes, bytes]]

# Of one connection only (RFC 9110, 7.6.1), or written anew by whoever sends the message on.
_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"content-length",
        b"date",
        b"server",
    )
)
# What proves who a client is ends here: engines know the router's key only.
_CREDENTIALS = frozenset((b"authorization", b"x-api-key", b"api-key", b"cookie"))
_NOT_TO_ENGINE = (
    _HOP | _CREDENTIALS | {b"host", b"expect", b"accept-encoding", b"content-encoding", b"content-type"}
)
_NOT_TO_CLIENT = _HOP | {b"x-request-id"}
_OVERRIDES = frozenset(name.encode() for name in OWNED_HEADERS)


def to_engine(headers: Headers, *, fixed: bytes, drop: Container[bytes] = ()) -> bytes:
    """A client's headers as lines of a request to both engines; `fixed` lines of the router's own go last.

    `headers`: names in lower case, as uvicorn gives them. Raises RouterError (400) for headers that belong
    to the router.
    """
    lines = []
    listed = _listed(headers)
    for name, value in headers:
        if name in _OVERRIDES:
            text = name.decode("latin-1")
            raise bad_request(
                f"The header '{text}' is set by the router, which pairs the engines: leave it out.",
                param=text,
            )
        if name not in _NOT_TO_ENGINE and name not in listed and name not in drop:
            lines.append(b"%b: %b\r\n" % (name, value))
    lines.append(fixed)
    return b"".join(lines)


def fixed_lines(api_key: str) -> bytes:
    """The router's own lines for both engines. Answers are looked into on the way: no compression."""
    key = b"authorization: Bearer %b\r\n" % api_key.encode() if api_key else b""
    return key + b"content-type: application/json\r\naccept-encoding: identity\r\n"


def to_client(headers: Headers) -> Headers:
    """An engine's headers (names in lower case) as the client gets them."""
    kept = [pair for pair in headers if pair[0] not in _NOT_TO_CLIENT]
    if len(kept) == len(headers):
        return kept
    listed = _listed(headers)
    return [pair for pair in kept if pair[0] not in listed] if listed else kept


def _listed(headers: Headers) -> set[bytes]:
    """Names that the sender's `Connection` headers make headers of one connection only."""
    found: set[bytes] = set()
    for name, value in headers:
        if name == b"connection" and value.lower() not in (b"keep-alive", b"close"):
            found.update(token.strip().lower() for token in value.split(b","))
    return found
