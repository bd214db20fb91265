"""The client's side: bodies read within limits, answers written at the client's pace."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from plait.router.connection import SCOPE_KEY
from plait.router.downstream import Client, ClientGoneError
from plait.router.errors import RouterError

GONE = {"type": "http.disconnect"}


class Line:
    """What a `ClientConnection` is to a `Client`."""

    def __init__(self) -> None:
        self.lost = False
        self.body_arrived = False
        self.write_paused = False
        self.aborted = False
        self.on_lost: Any = None
        self._drained = asyncio.Event()

    async def drained(self) -> None:
        await self._drained.wait()

    def take(self) -> None:
        """The client reads again."""
        self.write_paused = False
        self._drained.set()

    def abort(self) -> None:
        self.aborted = True


class Wire:
    """A client in messages: what it sends, and what was sent to it."""

    def __init__(
        self, *messages: dict[str, Any], headers: dict[str, str] | None = None, stall: float = 0.05
    ) -> None:
        self._messages = list(messages)
        self.sent: list[Any] = []
        self.line = Line()
        scope = {
            "type": "http",
            "headers": [(k.encode(), v.encode()) for k, v in (headers or {}).items()],
            SCOPE_KEY: self.line,
        }
        self.client = Client(scope, self._receive, self._send, stall=stall)

    async def _receive(self) -> Any:
        if not self._messages:
            await asyncio.sleep(60)
        return self._messages.pop(0)

    async def _send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(m["body"] for m in self.sent if m["type"] == "http.response.body")


def part(data: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": data, "more_body": more}


async def read(wire: Wire, *, limit: int = 10) -> bytes:
    return await wire.client.read_body(limit=limit, seconds=0.05)


# --- reading -----------------------------------------------------------------------------------------------


async def test_body_comes_in_parts() -> None:
    assert await read(Wire(part(b"ab", more=True), part(b"", more=True), part(b"cd"))) == b"abcd"


@pytest.mark.parametrize(
    ("messages", "headers", "status", "code"),
    [
        ([part(b"x" * 11)], {}, 413, "body_too_large"),
        ([part(b"x" * 6, more=True), part(b"x" * 6, more=True)], {}, 413, "body_too_large"),
        ([part(b"")], {"content-length": "11"}, 413, "body_too_large"),
        ([part(b"x")], {"content-encoding": "gzip"}, 415, "encoding"),
        ([], {}, 408, "body_timeout"),
        ([part(b"x", more=True)], {}, 408, "body_timeout"),
    ],
)
async def test_bodies_that_are_refused(
    messages: list[dict[str, Any]], headers: dict[str, str], status: int, code: str
) -> None:
    with pytest.raises(RouterError) as caught:
        await read(Wire(*messages, headers=headers))
    assert (caught.value.status, caught.value.code) == (status, code)


@pytest.mark.parametrize("encoding", ["identity", "Identity", ""])
async def test_body_of_the_limit_is_read(encoding: str) -> None:
    headers = {"content-length": "10", "content-encoding": encoding}
    assert await read(Wire(part(b"x" * 10), headers=headers)) == b"x" * 10


@pytest.mark.parametrize("sent", [[], [part(b"x", more=True)]])
async def test_client_that_leaves_while_it_sends(sent: list[dict[str, Any]]) -> None:
    with pytest.raises(ClientGoneError):
        await read(Wire(*sent, GONE))


# --- leaving -----------------------------------------------------------------------------------------------


async def test_who_is_told_when_the_client_leaves() -> None:
    wire, told = Wire(), []
    wire.client.on_gone(lambda: told.append("old"))
    wire.client.on_gone(lambda: told.append("new"))
    wire.line.on_lost()
    assert told == ["new"]
    wire.client.on_gone(None)
    assert wire.line.on_lost is None


async def test_client_that_has_left_already_is_told_at_once() -> None:
    wire, told = Wire(), []
    wire.line.lost = True
    assert wire.client.gone
    wire.client.on_gone(lambda: told.append(1))
    assert told == [1]


async def test_only_a_client_that_is_slow_is_cut_off_at_the_end() -> None:
    wire = Wire()
    wire.client.stop_waiting()
    assert not wire.line.aborted
    wire.line.write_paused = True
    wire.client.stop_waiting()
    assert wire.line.aborted


# --- writing -----------------------------------------------------------------------------------------------


async def test_whole_answer_with_its_length_and_id() -> None:
    wire = Wire()
    wire.client.request_id = "abc"
    before = time.perf_counter()
    await wire.client.answer(200, [(b"content-type", b"text/plain")], b"hello")
    start, body = wire.sent
    assert start["status"] == wire.client.status == 200
    assert start["headers"] == [
        (b"content-type", b"text/plain"),
        (b"content-length", b"5"),
        (b"x-request-id", b"abc"),
    ]
    assert body == {"type": "http.response.body", "body": b"hello", "more_body": False}
    assert wire.client.started_at is not None
    assert before <= wire.client.started_at <= time.perf_counter()


async def test_failure_before_the_answer_is_the_answer() -> None:
    wire = Wire()
    await wire.client.fail(RouterError(503, "busy", code="no_pair"))
    assert wire.sent[0]["status"] == 503
    assert (b"retry-after", b"1") in wire.sent[0]["headers"]
    assert json.loads(wire.body)["error"]["code"] == "no_pair"
    assert wire.sent[-1]["more_body"] is False


@pytest.mark.parametrize(("status", "closes"), [(408, True), (413, True), (415, True), (400, False)])
async def test_refused_body_ends_the_connection(status: int, closes: bool) -> None:
    wire = Wire()
    await wire.client.fail(RouterError(status, "no"))
    assert ((b"connection", b"close") in wire.sent[0]["headers"]) is closes


@pytest.mark.parametrize(
    ("tail", "gap"), [(b"data: 1\n\n", b""), (b"data: 1", b"\n\n"), (b"data: 1\n", b"\n\n")]
)
async def test_failure_in_a_stream_is_its_last_event(tail: bytes, gap: bytes) -> None:
    wire = Wire()
    await wire.client.start(200, [])
    await wire.client.chunk(tail)
    error = RouterError(502, "broken")
    await wire.client.fail(error)
    assert wire.body == tail + gap + b"data: " + error.body() + b"\n\n"
    assert [m["type"] for m in wire.sent].count("http.response.start") == 1
    assert wire.sent[-1]["more_body"] is False


async def test_tail_is_kept_over_short_chunks() -> None:
    wire = Wire()
    await wire.client.start(200, [])
    for piece in (b"data: 1", b"\n", b"\n"):
        await wire.client.chunk(piece)
    await wire.client.fail(RouterError(502, "broken"))
    assert wire.body.startswith(b"data: 1\n\ndata: ")


async def test_nothing_is_written_while_the_client_is_slow() -> None:
    wire = Wire(stall=30.0)
    await wire.client.start(200, [])
    wire.line.write_paused = True
    writing = asyncio.create_task(wire.client.chunk(b"x"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not wire.body
    wire.line.take()
    await asyncio.wait_for(writing, 1)
    assert wire.body == b"x"
    assert not wire.line.aborted


async def test_client_that_takes_nothing_is_given_up() -> None:
    wire = Wire()
    await wire.client.start(200, [])
    wire.line.write_paused = True
    with pytest.raises(ClientGoneError, match=r"nothing for 0\.05 s"):
        await wire.client.chunk(b"x")
    # Else its buffer would stand for as long as it likes.
    assert wire.line.aborted
    assert not wire.body


async def test_nothing_is_written_to_one_who_left() -> None:
    wire = Wire()
    await wire.client.start(200, [])
    wire.line.lost = True
    with pytest.raises(ClientGoneError):
        await wire.client.chunk(b"x")
    assert not wire.body
