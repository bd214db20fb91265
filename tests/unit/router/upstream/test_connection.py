"""One connection, fed byte by byte: every cut gives the same answer, and nothing odd is used again."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.router.upstream import connection as module
from plait.router.upstream.connection import Connection, Fault, Headers

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nX-A: 1\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"
TO_THE_END = b"HTTP/1.1 200 OK\r\n\r\nhello"


class Transport:
    def __init__(self) -> None:
        self.sent = b""
        self.aborted = False
        self.reading = True

    def write(self, data: bytes) -> None:
        self.sent += data

    def writelines(self, parts: Any) -> None:
        self.sent += b"".join(parts)

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Owner:
    def __init__(self) -> None:
        self.told: list[str] = []
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def opened(self, _: Connection) -> None:
        self.told.append("opened")

    def kept(self, _: Connection) -> None:
        self.told.append("kept")

    def lost(self, _: Connection) -> None:
        self.told.append("lost")


class Receiver:
    """Keeps what it is told; `at` closes the connection at that call."""

    def __init__(self, line: Line | None = None, *, close_at: str = "") -> None:
        self.told: list[str] = []
        self.status = 0
        self.headers: Headers = []
        self.body = b""
        self.fault: Fault | None = None
        self.message = ""
        self._line = line
        self._close_at = close_at

    def on_head(self, status: int, headers: Headers) -> None:
        self.status, self.headers = status, headers
        self._called("head")

    def on_data(self, data: bytes) -> None:
        assert data
        self.body += data
        if self.told[-1:] != ["data"]:
            self._called("data")

    def on_end(self) -> None:
        self._called("end")

    def on_failed(self, fault: Fault, message: str) -> None:
        self.fault, self.message = fault, message
        self._called("failed")

    def _called(self, what: str) -> None:
        self.told.append(what)
        if what == self._close_at:
            assert self._line is not None
            self._line.connection.close()


class Line:
    """A connection that stands, and its ends."""

    def __init__(self) -> None:
        self.owner = Owner()
        self.transport = Transport()
        self.connection = Connection(self.owner)
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]

    def ask(self, *pieces: bytes, close_at: str = "") -> Receiver:
        """One request, and what the engine sends for it."""
        receiver = Receiver(self, close_at=close_at)
        self.connection.request([b"GET / HTTP/1.1\r\n\r\n"], receiver)
        for piece in pieces:
            if not self.transport.aborted:
                self.connection.data_received(piece)
        return receiver

    def lose(self, exc: Exception | None = None) -> None:
        self.transport.aborted = True
        self.connection.connection_lost(exc)


# --- answers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [WHOLE, CHUNKED])
@given(data=st.data())
def test_any_cut_gives_the_same_answer(answer: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=6)))
    pieces = [answer[a:b] for a, b in itertools.pairwise([0, *cuts, len(answer)]) if a < b]
    line = Line()
    got = line.ask(*pieces)
    assert got.told == ["head", "data", "end"]
    assert (got.status, got.body) == (200, b"hello")
    assert line.owner.told == ["opened", "kept"]
    assert line.connection.usable
    assert line.connection.served == 1


def test_names_of_headers_are_in_lower_case_and_values_as_sent() -> None:
    got = Line().ask(b"HTTP/1.1 200 OK\r\nX-Big: Va Lue\r\nx-big: \xe9\r\ncontent-length: 0\r\n\r\n")
    assert got.headers == [(b"x-big", b"Va Lue"), (b"x-big", b"\xe9"), (b"content-length", b"0")]
    assert got.told == ["head", "end"]


def test_connection_is_used_again_and_again() -> None:
    line = Line()
    for number in range(1, 4):
        assert line.ask(WHOLE).body == b"hello"
        assert line.connection.served == number
    assert line.owner.told == ["opened", "kept", "kept", "kept"]


def test_small_request_is_one_write_and_a_large_one_is_whole() -> None:
    line = Line()
    for body in (b"x" * 100, b"y" * 100_000):
        line.transport.sent = b""
        line.connection.request([b"POST / HTTP/1.1\r\n\r\n", body], Receiver())
        assert line.transport.sent == b"POST / HTTP/1.1\r\n\r\n" + body
        line.connection.data_received(WHOLE)


def test_answer_without_a_length_ends_with_the_connection() -> None:
    line = Line()
    got = line.ask(TO_THE_END)
    assert got.told == ["head", "data"]
    line.lose()
    assert got.told == ["head", "data", "end"]
    assert got.body == b"hello"
    assert line.owner.told == ["opened", "lost"]


@pytest.mark.parametrize("status", [204, 304])
def test_answer_without_a_body_ends_with_its_head(status: int) -> None:
    line = Line()
    got = line.ask(b"HTTP/1.1 %d X\r\n\r\n" % status)
    assert got.told == ["head", "end"]
    assert line.connection.usable


def test_informational_heads_are_passed_over() -> None:
    line = Line()
    got = line.ask(b"HTTP/1.1 100 Continue\r\nx-early: 1\r\n\r\nHTTP/1.1 103 Hints\r\n\r\n", WHOLE)
    assert got.told == ["head", "data", "end"]
    assert (b"x-early", b"1") not in got.headers
    assert line.connection.usable


# --- what is not used again --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        WHOLE.replace(b"X-A: 1", b"connection: close"),
        WHOLE.replace(b"1.1", b"1.0"),
        WHOLE + b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno",
        WHOLE + b"garbage",
        CHUNKED + b"\x00",
    ],
    ids=["close", "HTTP/1.0", "a second answer", "garbage", "garbage after chunks"],
)
def test_whole_answer_arrives_but_its_connection_is_closed(answer: bytes) -> None:
    line = Line()
    got = line.ask(answer)
    assert got.told == ["head", "data", "end"]
    assert got.body == b"hello"
    assert line.owner.told == ["opened"]
    assert line.transport.aborted
    assert not line.connection.usable


@pytest.mark.parametrize("extra", [WHOLE, b"garbage", b"\r\n"])
def test_bytes_that_nobody_asked_for_close_the_connection(extra: bytes) -> None:
    line = Line()
    line.ask(WHOLE)
    line.connection.data_received(extra)
    assert line.transport.aborted
    assert not line.connection.usable
    # Also on one that was never used.
    line = Line()
    line.connection.data_received(extra)
    assert line.transport.aborted


def test_connection_in_use_or_closing_is_not_usable() -> None:
    line = Line()
    assert line.connection.usable
    line.ask(b"HTTP/1.1 200 OK\r\n")
    assert not line.connection.usable
    assert not Connection(Owner()).usable


# --- failures ----------------------------------------------------------------------------------------------


def test_lost_before_any_byte_of_the_first_answer_is_broken() -> None:
    line = Line()
    got = line.ask()
    line.lose()
    assert (got.told, got.fault) == (["failed"], Fault.BROKEN)
    assert "before its answer was complete" in got.message


def test_lost_before_any_byte_of_a_later_answer_is_stale() -> None:
    line = Line()
    line.ask(WHOLE)
    got = line.ask()
    line.lose()
    assert (got.told, got.fault) == (["failed"], Fault.STALE)
    line = Line()
    line.ask(WHOLE)
    got = line.ask(b"H")
    line.lose()
    assert got.fault is Fault.BROKEN


def test_lost_long_after_the_request_is_no_stale_connection() -> None:
    """The engine had the request, and gave it up."""
    line = Line()
    line.ask(WHOLE)
    got = line.ask()
    line.owner.time += 1.0
    line.lose()
    assert got.fault is Fault.BROKEN


@pytest.mark.parametrize("sent", [WHOLE[:-1], CHUNKED[:-2], WHOLE[:20]])
@pytest.mark.parametrize("exc", [None, ConnectionResetError()])
def test_torn_answer_is_broken(sent: bytes, exc: Exception | None) -> None:
    line = Line()
    got = line.ask(sent)
    line.lose(exc)
    assert got.told[-1] == "failed"
    assert got.fault is Fault.BROKEN
    assert ("ConnectionResetError" in got.message) is (exc is not None)


def test_reset_is_no_end_of_an_answer_without_a_length() -> None:
    line = Line()
    got = line.ask(TO_THE_END)
    line.lose(ConnectionResetError())
    assert got.fault is Fault.BROKEN


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"SSH-2.0-OpenSSH\r\n", "not HTTP"),
        (b"\x16\x03\x01\x00\xa5", "not HTTP"),
        (b"HTTP/1.1 2x0 OK\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", "not HTTP"),
        (b"HTTP/1.1 101 X\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n", "switched protocols"),
    ],
)
def test_what_is_no_answer_is_broken(sent: bytes, why: str) -> None:
    line = Line()
    got = line.ask(sent)
    assert got.fault is Fault.BROKEN
    assert why in got.message
    assert line.transport.aborted
    line.connection.connection_lost(None)
    assert got.told.count("failed") == 1


def test_endless_head_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_HEAD_BYTES", 1000)
    line = Line()
    got = line.ask(b"HTTP/1.1 200 OK\r\n", *[b"x-%d: %b\r\n" % (i, b"y" * 90) for i in range(20)])
    assert got.fault is Fault.BROKEN
    assert "head of over 1000 bytes" in got.message
    assert line.transport.aborted


# --- receivers that close, and the client's pace -----------------------------------------------------------


@pytest.mark.parametrize("at", ["head", "data"])
def test_receiver_that_closes_hears_nothing_more(at: str) -> None:
    line = Line()
    got = line.ask(WHOLE, close_at=at)
    assert got.told[-1] == at
    assert line.transport.aborted
    line.connection.connection_lost(None)
    assert got.told[-1] == at
    assert line.owner.told == ["opened", "lost"]


def test_pause_and_resume_reach_the_engine() -> None:
    line = Line()
    line.ask(WHOLE[:-1])
    line.connection.pause()
    assert not line.transport.reading
    line.connection.resume()
    assert line.transport.reading


def test_connection_that_was_paused_at_the_end_reads_again() -> None:
    line = Line()
    line.ask(WHOLE[:-1])
    line.connection.pause()
    line.connection.data_received(WHOLE[-1:])
    assert line.transport.reading
    assert line.owner.told == ["opened", "kept"]


def test_closed_connection_is_left_alone() -> None:
    line = Line()
    line.connection.close()
    line.connection.pause()
    assert line.transport.reading
    line.transport.reading = False
    line.connection.resume()
    assert not line.transport.reading
    # Nor does one that never came about mind.
    Connection(Owner()).close()
    Connection(Owner()).pause()
    Connection(Owner()).resume()
