"""Requests whose HTTP itself is wrong, or tries to make two readers see two different requests."""

from __future__ import annotations

from tests.router.conformance.cases.case import CHAT, After, Case
from tests.router.conformance.conftest import MAX_BODY_MIB
from tests.router.conformance.wire import request

_BODY = b'{"messages":[]}'
_JSON = "content-type: application/json\r\n"
# A second request hidden behind the first: whoever reads the first one's length otherwise runs it.
_HIDDEN = request("POST", "/flush_cache", b"")


def _raw(head: str, body: bytes = b"", *, status: tuple[int, ...] = (400,), after: After = "closed") -> Case:
    """`head` with its lines ended by CRLF and a blank line behind."""
    return Case(head.replace("\n", "\r\n").encode("latin-1") + b"\r\n\r\n" + body, status, after)


def _post(
    lines: str, body: bytes = _BODY, *, status: tuple[int, ...] = (400,), after: After = "closed"
) -> Case:
    """A prompt with more header lines; they have to give the length."""
    return _raw(f"POST {CHAT} HTTP/1.1\nHost: x\nContent-Type: application/json\n{lines}", body,
                status=status, after=after)  # fmt: skip


def _header(line: bytes, *, status: tuple[int, ...] = (400,)) -> Case:
    """A prompt that is right but for one more header line."""
    sent = request("POST", CHAT, _BODY).replace(b"\r\n\r\n", b"\r\n" + line + b"\r\n\r\n", 1)
    return Case(sent, status, "closed")


def _chunks(data: bytes, *, status: tuple[int, ...] = (400,)) -> Case:
    return _post("Transfer-Encoding: chunked", data, status=status)


def _version(version: bytes) -> Case:
    """A prompt that is right but for its version."""
    return Case(request("POST", CHAT, _BODY).replace(b" HTTP/1.1", version, 1), (400, 505), "closed")


REQUEST_LINES = {
    "no version": _version(b""),
    "words": _raw("hello"),
    "empty target": _raw("POST  HTTP/1.1\nHost: x"),
    "relative target": _raw("POST v1/chat/completions HTTP/1.1\nHost: x"),
    "space in the target": _raw("POST /v1/chat completions HTTP/1.1\nHost: x"),
    "version 0.9": _version(b" HTTP/0.9"),
    "version 2": _version(b" HTTP/2.0"),
    "version 9.9": _version(b" HTTP/9.9"),
    "version in words": _version(b" HTTP/one"),
    "other protocol": _version(b" ICY/1.1"),
    "unknown method": _raw("BREW /health HTTP/1.1\nHost: x", status=(400, 405, 501)),
    "method in lower case": _raw("get /health HTTP/1.1\nHost: x"),
    "preface of HTTP/2": Case(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (400,), "closed"),
    "TLS hello": Case(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(64)) + b"\r\n\r\n",
                      (400,), "closed"),
    "null byte in the target": Case(b"GET /health\x00 HTTP/1.1\r\nHost: x\r\n\r\n", (400,), "closed"),
    "carriage return alone": Case(b"GET /health HTTP/1.1\rHost: x\r\r", (400,), "closed"),
    "tunnel": _raw("CONNECT example.com:443 HTTP/1.1\nHost: example.com:443", status=(400, 404, 405)),
}  # fmt: skip

HEADERS = {
    "no colon": _header(b"just words"),
    "no name": _header(b": value"),
    "space before the colon": _header(b"X-Thing : 1"),
    "space in a name": _header(b"X Thing: 1"),
    "null byte in a value": _header(b"X-Thing: a\x00b"),
    "control in a value": _header(b"X-Thing: a\x01b"),
    "carriage return in a value": _header(b"X-Thing: a\rX-Evil: 1"),
    "folded": _header(b"X-Thing: a\r\n b"),
    "slash in a name": _header(b"X/Thing: 1"),
    "no host": Case(request("POST", CHAT, _BODY).replace(b"host: router.test\r\n", b""), (400,), "closed"),
    "two hosts": _header(b"Host: other.test"),
    "too many": _header(b"\r\n".join(b"X-%d: 1" % i for i in range(5000)), status=(431,)),
    "one too large": _header(b"X-Thing: " + b"a" * 300_000, status=(431,)),
    "endless name": _header(b"X-" + b"a" * 300_000, status=(400, 431)),
    "target too long": Case(request("POST", "/" + "a" * 300_000, _BODY), (400, 414, 431), "closed"),
}

LENGTHS = {
    "two lengths": _post("Content-Length: 15\nContent-Length: 16"),
    "two lengths in one line": _post("Content-Length: 15, 16"),
    "length of words": _post("Content-Length: many"),
    "length with words": _post("Content-Length: 15abc"),
    "length with a plus": _post("Content-Length: +15"),
    "negative length": _post("Content-Length: -1"),
    "length in hexadecimal": _post("Content-Length: 0xf"),
    "empty length": _post("Content-Length:"),
    "length beyond 64 bits": _post("Content-Length: 99999999999999999999999", status=(400, 413)),
    "length and chunks": _post("Content-Length: 5\nTransfer-Encoding: chunked", b"0\r\n\r\n" + _HIDDEN),
    "chunks and length": _post("Transfer-Encoding: chunked\nContent-Length: 200", b"0\r\n\r\n" + _HIDDEN),
    "chunks not last": _post("Transfer-Encoding: chunked, gzip\nContent-Length: 15"),
    "chunks twice": _post("Transfer-Encoding: chunked\nTransfer-Encoding: chunked", b"0\r\n\r\n" + _HIDDEN),
    "chunks misspelt": _post("Transfer-Encoding: xchunked", b"0\r\n\r\n" + _HIDDEN, status=(400, 501)),
    "chunks in quotes": _post('Transfer-Encoding: "chunked"', b"0\r\n\r\n" + _HIDDEN, status=(400, 501)),
    "unknown coding": _post("Transfer-Encoding: rot13", b"0\r\n\r\n" + _HIDDEN, status=(400, 501)),
    "chunks in HTTP/1.0": Case(
        _post("Transfer-Encoding: chunked", b"0\r\n\r\n" + _HIDDEN).sent.replace(b"/1.1", b"/1.0", 1),
        (400, 501),
        "closed",
    ),
}

CHUNKS = {
    "size of words": _chunks(b"zz\r\n"),
    "size empty": _chunks(b"\r\n"),
    "size negative": _chunks(b"-1\r\n"),
    "size beyond 64 bits": _chunks(b"fffffffffffffffff\r\n", status=(400, 413)),
    "no end of a chunk": _chunks(b"f\r\n" + _BODY + b"xx0\r\n\r\n"),
    "line feed alone": _chunks(b"f\n" + _BODY + b"\n0\n\n"),
    "control in an extension": _chunks(b"f;a=\x00\r\n" + _BODY + b"\r\n0\r\n\r\n"),
    "trailers without end": _chunks(
        b"f\r\n" + _BODY + b"\r\n0\r\n" + b"X-T: 1\r\n" * 50_000, status=(400, 431)
    ),
}

_OVER = b'{"messages":[],"x":"' + b"a" * (MAX_BODY_MIB << 20) + b'"}'
SIZES = {
    "body over the limit": Case(request("POST", CHAT, _OVER), (413,), "closed", says=("bytes",)),
    "body far over the limit, unsent": Case(
        request("POST", CHAT, headers={"content-length": "9000000000"}), (413,), "closed", says=("bytes",)
    ),
    "body over the limit, in chunks": Case(
        request("POST", CHAT, headers={"transfer-encoding": "chunked"})
        + b"".join(b"10000\r\n" + b"a" * 0x10000 + b"\r\n" for _ in range((MAX_BODY_MIB << 4) + 2)),
        (413,),
        "closed",
        says=("bytes",),
    ),
}

CASES: dict[str, Case] = {
    f"{group}: {name}": case
    for group, table in (
        ("request line", REQUEST_LINES),
        ("header", HEADERS),
        ("length", LENGTHS),
        ("chunk", CHUNKS),
        ("size", SIZES),
    )
    for name, case in table.items()
}
