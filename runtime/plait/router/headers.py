"""Which headers travel: from a client to both engines, and from the decode engine back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from multidict import CIMultiDict

from plait.router.errors import bad_request

# Of one connection only (RFC 9110, 7.6.1), or written anew by whoever sends the message on.
_HOP = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "content-length",
        "date",
        "server",
    )
)
_NOT_TO_ENGINE = _HOP | {"host", "expect", "accept-encoding", "content-encoding"}
# With these an engine (if it is set to) takes pairing fields from headers, over those in the body.
_OVERRIDES = ("x-override-rid", "x-override-bootstrap-")


def to_engine(headers: Iterable[tuple[bytes, bytes]], *, api_key: str) -> CIMultiDict[str]:
    """A client's headers as both engines get them; with `api_key` that is what authorizes.

    Raises RouterError (400) for headers that belong to the router.
    """
    named = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers]
    listed = {
        token.strip().lower() for name, value in named if name == "connection" for token in value.split(",")
    }
    sent: CIMultiDict[str] = CIMultiDict()
    for name, value in named:
        if name.startswith(_OVERRIDES):
            raise bad_request(
                f"The header '{name}' is set by the router, which pairs the engines: leave it out.",
                param=name,
            )
        if name not in _NOT_TO_ENGINE and name not in listed:
            sent.add(name, value)
    sent.setdefault("content-type", "application/json")
    # Answers are passed on byte for byte and looked into on the way.
    sent["accept-encoding"] = "identity"
    if api_key:
        sent["authorization"] = f"Bearer {api_key}"
    return sent


def to_client(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """An engine's headers as the client gets them."""
    return [
        (name.lower().encode(), value.encode("utf-8", "surrogateescape"))
        for name, value in headers.items()
        if name.lower() not in _HOP and name.lower() != "x-request-id"
    ]
