"""Well-formed requests for what is not served, or not in this way."""

from __future__ import annotations

from tests.router.conformance.cases.case import CHAT, COMPLETIONS, GENERATE, After, Case
from tests.router.conformance.wire import request

_BODY = b'{"messages":[],"prompt":"x","text":"x","input":"x"}'


def _unknown(target: str, method: str = "POST") -> Case:
    body = None if method in ("GET", "HEAD", "OPTIONS") else _BODY
    return Case(request(method, target, body), (404,), "usable", code="unknown_route", method=method)


def _method(method: str, target: str) -> Case:
    body = None if method in ("GET", "HEAD", "OPTIONS", "TRACE") else _BODY
    return Case(request(method, target, body), (405,), "usable", code="wrong_method", method=method)


def _typed(content_type: str) -> Case:
    sent = request("POST", CHAT, _BODY, headers={"content-type": content_type})
    return Case(sent, (415,), "as it says", says=("application/json",))


def _with(name: str, value: str, status: int, *, param: str | None = None) -> Case:
    after: After = "as it says" if status == 415 else "usable"
    return Case(request("POST", CHAT, _BODY, headers={name: value}), (status,), after, param)


OPENAI = {
    path: _unknown(f"/v1{path}")
    for path in (
        "/embeddings",
        "/responses",
        "/moderations",
        "/rerank",
        "/score",
        "/classify",
        "/tokenize",
        "/audio/speech",
        "/audio/transcriptions",
        "/images/generations",
        "/files",
        "/batches",
        "/fine_tuning/jobs",
        "/assistants",
        "/threads/runs",
        "/realtime",
        "/chat/completions/abc",
        "/chat",
        "",
    )
}

SPELLINGS = {
    target: _unknown(target)
    for target in (
        "/v1/chat/completions/",
        "//v1/chat/completions",
        "/v1//chat/completions",
        "/V1/Chat/Completions",
        "/v1/chat/completions%00",
        "/v1/chat/completions;x=1",
        "/v1/./chat/completions",
        "/x/../v1/chat/completions",
        "/generate/",
        "/",
        "/v1/%ff%fe",
    )
}

METHODS = {
    f"{method} {target}": _method(method, target)
    for method, target in (
        ("GET", CHAT),
        ("PUT", CHAT),
        ("DELETE", CHAT),
        ("PATCH", COMPLETIONS),
        ("OPTIONS", CHAT),
        ("HEAD", CHAT),
        ("TRACE", CHAT),
        ("GET", COMPLETIONS),
        ("GET", GENERATE),
        ("PUT", GENERATE),
        ("POST", "/v1/models"),
        ("DELETE", "/v1/models/tiny"),
        ("POST", "/health"),
        ("POST", "/ready"),
        ("POST", "/openapi.json"),
    )
}

CONTENT = {
    "plain text": _typed("text/plain"),
    "form": _typed("application/x-www-form-urlencoded"),
    "multipart": _typed("multipart/form-data; boundary=x"),
    "xml": _typed("application/xml"),
    "octets": _typed("application/octet-stream"),
    "nonsense": _typed("json"),
    "injection": _typed("text/plain; application/json"),
    "gzip": _with("content-encoding", "gzip", 415),
    "brotli": _with("content-encoding", "br, identity", 415),
    "unknown encoding": _with("content-encoding", "rot13", 415),
}

# With these an engine takes fields from headers, over those in the body.
OWNED_HEADERS = {
    name: _with(name, "1", 400, param=name)
    for name in (
        "x-override-rid",
        "x-override-bootstrap-host",
        "x-override-bootstrap-port",
        "x-override-bootstrap-room",
        "x-override-routed-dp-rank",
        "x-override-disagg-prefill-dp-rank",
        "x-data-parallel-rank",
    )
}

REQUEST_IDS = {
    name: _with("x-request-id", value, 400, param="x-request-id")
    for name, value in (
        ("spaces", "a b"),
        ("beyond ASCII", "ü"),
        ("too long", "a" * 1000),
        ("tab", "a\tb"),
    )
}

UPGRADES = {
    "websocket": Case(
        request(
            "GET",
            CHAT,
            headers={
                "connection": "Upgrade",
                "upgrade": "websocket",
                "sec-websocket-version": "13",
                "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
            },
        ),
        (400, 404, 405, 426),
        "usable",
        method="GET",
    ),
}

CASES: dict[str, Case] = {
    f"{group}: {name}": case
    for group, table in (
        ("unserved", OPENAI),
        ("spelling", SPELLINGS),
        ("method", METHODS),
        ("content", CONTENT),
        ("the router's header", OWNED_HEADERS),
        ("request id", REQUEST_IDS),
        ("upgrade", UPGRADES),
    )
    for name, case in table.items()
}
