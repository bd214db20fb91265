"""One prompt on a connection: what its handler is told, and what goes out on the wire."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from plait.router.errors import RouterError
from plait.router.incoming import Incoming, PromptHandler
from plait.router.leg import RawAnswer

JSON = [(b"content-type", b"application/json")]


class Line:
    """A connection, to an `Incoming`."""

    def __init__(self) -> None:
        self.sent = b""
        self.closed = ""
        self.write_paused = False
        self.turns = 0
        self.server_state: Any = self
        self.default_headers = [(b"date", b"today")]

    @property
    def transport(self) -> Line:
        return self

    def write(self, data: bytes) -> None:
        self.sent += data

    def writelines(self, parts: Any) -> None:
        self.sent += b"".join(parts)

    def close(self) -> None:
        self.closed = self.closed or "close"

    def leave(self, *, unread: bool) -> None:
        self.closed = self.closed or ("leave" if unread else "close")

    def abort(self) -> None:
        self.closed = "abort"

    def answered(self) -> None:
        self.turns += 1


class Handler(PromptHandler):
    """`refuses`: the error of each head."""

    max_body = 100

    def __init__(self) -> None:
        self.refuses: RouterError | None = None
        self.log: list[str] = []

    def opened(self, incoming: Incoming) -> None:
        self.log.append("opened")
        if self.refuses is not None:
            raise self.refuses

    def handle(self, incoming: Incoming) -> None:
        self.log.append(f"handle {incoming.body.decode()}")

    def refused(self, incoming: Incoming, error: RouterError) -> None:
        self.log.append(f"refused {error.status}")


class Wire:
    """A request, its connection and its handler."""

    def __init__(self, *headers: tuple[bytes, bytes], method: bytes = b"POST", **how: bool) -> None:
        self.line = Line()
        self.handler = Handler()
        connection: Any = self.line
        given = {"keep_alive": True, "chunked": True, "expects_continue": False} | how
        self.incoming = Incoming(connection, self.handler, method, list(headers), **given)

    def came(self, *pieces: bytes) -> Wire:
        """The whole request."""
        self.incoming.begin()
        for piece in pieces:
            self.incoming.feed(piece)
        self.incoming.arrived()
        return self

    @property
    def sent(self) -> tuple[bytes, bytes]:
        """Head and body on the wire."""
        head, _, body = self.line.sent.partition(b"\r\n\r\n")
        return head, body


# --- the request -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [(b"abc",), (b"a", b"b", b"c"), ()])
def test_body_is_handled_when_it_is_whole(pieces: tuple[bytes, ...]) -> None:
    it = Wire()
    it.incoming.begin()
    for piece in pieces:
        it.incoming.feed(piece)
    assert it.handler.log == ["opened"]
    it.incoming.arrived()
    assert it.handler.log == ["opened", "handle " + b"".join(pieces).decode()]
    assert it.line.sent == b""


def test_request_whose_turn_has_not_come_waits() -> None:
    it = Wire()
    it.incoming.feed(b"abc")
    it.incoming.arrived()
    assert it.handler.log == []
    it.incoming.begin()
    assert it.handler.log == ["opened", "handle abc"]


def test_client_that_left_before_its_turn_is_nobody() -> None:
    it = Wire()
    it.incoming.lost()
    it.incoming.begin()
    assert it.handler.log == []


@pytest.mark.parametrize("how", ["length", "bytes"])
def test_body_that_is_too_large_closes(how: str) -> None:
    it = Wire(*([(b"content-length", b"101")] if how == "length" else []))
    it.incoming.begin()
    if how == "bytes":
        it.incoming.feed(b"x" * 60)
        assert it.line.sent == b""
        it.incoming.feed(b"x" * 41)
    assert it.handler.log == ["opened", "refused 413"]
    head, body = it.sent
    assert head.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in head
    assert json.loads(body)["error"]["code"] == "body_too_large"
    assert it.line.closed == "leave"
    # What still comes is nobody's.
    it.incoming.feed(b"x")
    it.incoming.arrived()
    assert it.handler.log[-1] == "refused 413"
    assert it.line.sent.count(b"HTTP/1.1") == 1


def test_refused_head_is_answered_when_its_body_is_there() -> None:
    it = Wire()
    it.handler.refuses = RouterError(401, "who?", code="invalid_api_key")
    it.incoming.begin()
    it.incoming.feed(b"x" * 50)
    assert it.line.sent == b""
    it.incoming.arrived()
    assert it.handler.log == ["opened", "refused 401"]
    assert it.sent[0].startswith(b"HTTP/1.1 401 ")
    assert (it.line.closed, it.line.turns) == ("", 1)


def test_large_body_of_a_refused_head_is_not_waited_for() -> None:
    it = Wire()
    it.handler.refuses = RouterError(401, "who?")
    it.incoming.begin()
    for _ in range(70):
        it.incoming.feed(b"x" * 1000)
    assert it.sent[0].startswith(b"HTTP/1.1 401 ")
    assert it.line.closed == "leave"
    assert it.line.turns == 1


@pytest.mark.parametrize("status", [408, 413, 415, 431])
def test_head_whose_body_is_of_no_use_closes_at_once(status: int) -> None:
    it = Wire(expects_continue=True)
    it.handler.refuses = RouterError(status, "no")
    it.incoming.begin()
    assert it.sent[0].startswith(b"HTTP/1.1 %d " % status)
    assert it.line.closed == "leave"


def test_body_is_asked_for_only_where_it_is_wanted() -> None:
    for refuses, asked in ((None, True), (RouterError(401, "who?"), False)):
        it = Wire(expects_continue=True)
        it.handler.refuses = refuses
        it.incoming.begin()
        assert it.line.sent == (b"HTTP/1.1 100 Continue\r\n\r\n" if asked else b"")


# --- the answer --------------------------------------------------------------------------------------------


def test_whole_answer() -> None:
    it = Wire().came(b"{}")
    it.incoming.request_id = "abc"
    before = time.perf_counter()
    it.incoming.answer(200, JSON, b'{"a":1}')
    head, body = it.sent
    assert head.split(b"\r\n") == [
        b"HTTP/1.1 200 OK",
        b"date: today",
        b"content-type: application/json",
        b"x-request-id: abc",
        b"content-length: 7",
    ]
    assert body == b'{"a":1}'
    assert it.incoming.status == 200
    assert it.incoming.started_at is not None
    assert before <= it.incoming.started_at <= time.perf_counter()
    assert (it.line.turns, it.line.closed) == (1, "")


def test_stream_is_chunked() -> None:
    it = Wire().came()
    it.incoming.start(200, JSON)
    large = b"y" * 20_000
    for data in (b"x" * 10, b"", large):
        it.incoming.chunk(data)
    assert it.line.turns == 0
    it.incoming.end()
    head, body = it.sent
    assert b"transfer-encoding: chunked" in head
    assert body == b"a\r\n" + b"x" * 10 + b"\r\n4e20\r\n" + large + b"\r\n0\r\n\r\n"
    assert (it.line.turns, it.line.closed) == (1, "")


def test_stream_to_an_old_client_ends_with_its_connection() -> None:
    it = Wire(chunked=False).came()
    it.incoming.start(200, [])
    it.incoming.chunk(b"abc")
    it.incoming.end()
    head, body = it.sent
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert body == b"abc"
    assert it.line.closed == "close"


def test_large_answer_is_whole() -> None:
    it = Wire().came()
    it.incoming.answer(200, [], b"z" * 50_000)
    assert it.sent[1] == b"z" * 50_000


def test_answer_to_head_has_the_length_and_no_body() -> None:
    it = Wire(method=b"HEAD").came()
    it.incoming.fail(RouterError(405, "no"))
    head, body = it.sent
    assert b"content-length: " in head
    assert body == b""


def test_client_that_closes_after_this_is_told_so() -> None:
    it = Wire(keep_alive=False).came()
    it.incoming.answer(200, [], b"")
    assert b"connection: close" in it.sent[0]
    assert it.line.closed == "close"


def test_failure_before_the_answer_is_the_answer() -> None:
    it = Wire().came()
    it.incoming.fail(RouterError(503, "busy", code="no_pair"))
    head, body = it.sent
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1" in head
    assert json.loads(body)["error"]["code"] == "no_pair"
    assert it.line.closed == ""
    # Only the first word counts.
    it.incoming.fail(RouterError(500, "again"))
    assert it.line.sent.count(b"HTTP/1.1") == 1
    assert it.line.turns == 1


def test_error_may_close() -> None:
    it = Wire().came()
    it.incoming.fail(RouterError(503, "ending", closes=True))
    assert it.line.closed == "close"


def test_engines_own_answer_is_the_answer() -> None:
    it = Wire().came()
    it.incoming.fail(RawAnswer(422, [(b"content-type", b"text/odd"), (b"x-a", b"1")], b"odd"))
    head, body = it.sent
    assert head.startswith(b"HTTP/1.1 422 ")
    assert b"content-type: text/odd" in head
    assert b"x-a" not in head
    assert body == b"odd"


@pytest.mark.parametrize(
    ("tail", "gap"),
    [((b"data: 1\n\n",), b""), ((b"data: 1",), b"\n\n"), ((b"data: 1\n",), b"\n\n"), ((b"x\n", b"\n"), b"")],
)
def test_failure_in_a_stream_is_its_last_event(tail: tuple[bytes, ...], gap: bytes) -> None:
    it = Wire(chunked=False).came()
    it.incoming.start(200, [])
    for piece in tail:
        it.incoming.chunk(piece)
    error = RouterError(502, "broken")
    it.incoming.fail(error)
    assert it.sent[1] == b"".join(tail) + gap + b"data: " + error.body() + b"\n\n"
    assert it.line.turns == 1


# --- the client's pace, and its end ------------------------------------------------------------------------


def test_client_that_leaves_is_told_once() -> None:
    it = Wire().came()
    told: list[str] = []
    it.incoming.on_gone = lambda: told.append("gone")
    it.incoming.on_drained = lambda: told.append("drained")
    it.incoming.drained()
    it.incoming.lost()
    it.incoming.lost()
    it.incoming.drained()
    assert told == ["drained", "gone"]
    assert it.incoming.gone


def test_nothing_is_written_to_one_who_left() -> None:
    it = Wire().came()
    it.incoming.lost()
    it.incoming.start(200, [])
    it.incoming.chunk(b"x")
    it.incoming.end()
    assert it.line.sent == b""
    it = Wire().came()
    it.incoming.lost()
    it.incoming.fail(RouterError(500, "x"))
    assert it.line.sent == b""


def test_answered_client_may_leave() -> None:
    it = Wire().came()
    told: list[str] = []
    it.incoming.on_gone = lambda: told.append("gone")
    it.incoming.answer(200, [], b"")
    it.incoming.lost()
    assert told == []


def test_aborted_client_is_gone_without_a_word() -> None:
    it = Wire().came()
    told: list[str] = []
    it.incoming.on_gone = lambda: told.append("gone")
    it.incoming.abort()
    assert (it.line.closed, it.incoming.gone, told) == ("abort", True, [])
    it.incoming.fail(RouterError(503, "ending"))
    assert it.line.sent == b""


def test_pace_is_the_connections() -> None:
    it = Wire().came()
    assert not it.incoming.write_paused
    it.line.write_paused = True
    assert it.incoming.write_paused
