"""The client's side: bodies read within limits, answers written at the client's pace."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from plait.router.downstream import Client, ClientGoneError
from plait.router.errors import RouterError

GONE = {"type": "http.disconnect"}


class Wire:
    """A client in messages: what it sends, and what was sent to it."""

    def __init__(self, *messages: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        self._messages = list(messages)
        self.sent: list[Any] = []
        self.blocked = False
        scope = {"type": "http", "headers": [(k.encode(), v.encode()) for k, v in (headers or {}).items()]}
        self.client = Client(scope, self._receive, self._send, stall=0.05)

    async def _receive(self) -> Any:
        if not self._messages:
            await asyncio.sleep(60)
        return self._messages.pop(0)

    async def _send(self, message: Any) -> None:
        if self.blocked:
            await asyncio.sleep(60)
        self.sent.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(m["body"] for m in self.sent if m["type"] == "http.response.body")


def part(data: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": data, "more_body": more}


async def read(wire: Wire, *, limit: int = 10) -> bytes:
    return await wire.client.read_body(limit=limit, seconds=0.05)


async def test_body_comes_in_parts() -> None:
    assert await read(Wire(part(b"ab", more=True), part(b"", more=True), part(b"cd"))) == b"abcd"


@pytest.mark.parametrize(
    ("wire", "status"),
    [
        (Wire(part(b"x" * 11)), 413),
        (Wire(part(b"x" * 6, more=True), part(b"x" * 6)), 413),
        (Wire(part(b""), headers={"content-length": "11"}), 413),
        (Wire(part(b"x"), headers={"content-encoding": "gzip"}), 415),
        (Wire(part(b"x", more=True)), 408),
    ],
)
async def test_bodies_that_are_refused(wire: Wire, status: int) -> None:
    with pytest.raises(RouterError) as caught:
        await read(wire)
    assert caught.value.status == status


async def test_body_of_the_limit_is_read() -> None:
    assert await read(Wire(part(b"x" * 10), headers={"content-length": "10"})) == b"x" * 10


async def test_client_that_leaves_while_it_sends() -> None:
    with pytest.raises(ClientGoneError):
        await read(Wire(part(b"x", more=True), GONE))


async def test_gone_waits_for_the_client_to_leave() -> None:
    wire = Wire(part(b""), part(b""), GONE)
    await asyncio.wait_for(wire.client.gone(), 1)


async def test_whole_answer_with_its_length_and_id() -> None:
    wire = Wire()
    wire.client.request_id = "abc"
    await wire.client.answer(200, [(b"content-type", b"text/plain")], b"hello")
    start, body = wire.sent
    assert start["status"] == 200
    assert start["headers"] == [
        (b"content-type", b"text/plain"),
        (b"content-length", b"5"),
        (b"x-request-id", b"abc"),
    ]
    assert body == {"type": "http.response.body", "body": b"hello", "more_body": False}
    assert wire.client.started_at is not None


async def test_failure_before_the_answer_is_the_answer() -> None:
    wire = Wire()
    await wire.client.fail(RouterError(503, "busy", code="no_pair"))
    assert wire.sent[0]["status"] == 503
    assert (b"retry-after", b"1") in wire.sent[0]["headers"]
    assert json.loads(wire.body)["error"]["code"] == "no_pair"
    assert wire.sent[-1]["more_body"] is False


async def test_refused_body_ends_the_connection() -> None:
    wire = Wire()
    await wire.client.fail(RouterError(413, "large"))
    assert (b"connection", b"close") in wire.sent[0]["headers"]


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


async def test_client_that_takes_nothing_is_given_up() -> None:
    wire = Wire()
    await wire.client.start(200, [])
    wire.blocked = True
    with pytest.raises(ClientGoneError):
        await wire.client.chunk(b"x")
