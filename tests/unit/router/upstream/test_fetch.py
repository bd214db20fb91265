"""One-off requests: an answer, an error with its reason, or the end of the time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.unit.router.raw_server import OK, Line, Script, raw_server

from plait.router.upstream import fetch as module
from plait.router.upstream.connection import Fault
from plait.router.upstream.fetch import Answer, FetchError, fetch, request_head
from plait.router.upstream.pool import Pool


class Engine:
    """A server of bytes, and a pool to it."""

    def __init__(self) -> None:
        self.got: list[tuple[bytes, bytes]] = []
        self.lines = 0
        self.script: Script = self._answer
        self.pool: Pool

    async def _answer(self, line: Line) -> None:
        while True:
            self.got.append(await line.request())
            await line.send(OK)

    async def ask(self, *, seconds: float = 10.0) -> Answer:
        return await fetch(self.pool, "GET", "/x", seconds=seconds)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    made = Engine()

    async def met(line: Line) -> None:
        made.lines = line.number
        await made.script(line)

    async with raw_server(met) as server:
        made.pool = Pool(server.url, connect_seconds=10.0)
        yield made
        await made.pool.close()


async def gone(pool: Pool) -> None:
    async with asyncio.timeout(5):
        while pool.connections:
            await asyncio.sleep(0.005)


async def test_get(engine: Engine) -> None:
    answer = await fetch(engine.pool, "GET", "/a?b=c", headers=[(b"x-a", b"1")], seconds=10.0)
    assert (answer.status, answer.body) == (200, b"{}")
    assert (b"content-type", b"application/json") in answer.headers
    host = engine.pool.authority
    assert engine.got == [(b"GET /a?b=c HTTP/1.1\r\nhost: %b\r\nx-a: 1\r\n\r\n" % host, b"")]


async def test_post(engine: Engine) -> None:
    await fetch(engine.pool, "POST", "/a", body=b'{"rid":"r"}', seconds=10.0)
    await fetch(engine.pool, "POST", "/a", seconds=10.0)
    (head, body), (empty, none) = engine.got
    assert body == b'{"rid":"r"}'
    assert b"content-type: application/json\r\ncontent-length: 11\r\n\r\n" in head
    assert empty.endswith(b"content-length: 0\r\n\r\n")
    assert not none
    assert engine.lines == 1


def test_head_of_a_request() -> None:
    assert request_head("GET", "/", b"h:1", [], 0) == b"GET / HTTP/1.1\r\nhost: h:1\r\n\r\n"


async def test_answer_in_pieces_is_whole(engine: Engine) -> None:
    async def script(line: Line) -> None:
        await line.request()
        for piece in (OK[:10], OK[10:-1], OK[-1:]):
            await line.send(piece)
            await asyncio.sleep(0.01)
        await line.reader.read()

    engine.script = script
    assert (await engine.ask()).body == b"{}"


async def test_answer_that_does_not_come(engine: Engine) -> None:
    async def script(line: Line) -> None:
        await line.request()
        await line.reader.read()

    engine.script = script
    with pytest.raises(TimeoutError):
        await engine.ask(seconds=0.05)
    await gone(engine.pool)


async def test_answer_that_breaks_off(engine: Engine) -> None:
    async def script(line: Line) -> None:
        await line.request()
        await line.send(OK[:-1])

    engine.script = script
    with pytest.raises(FetchError, match="before its answer was complete") as caught:
        await engine.ask()
    assert caught.value.fault is Fault.BROKEN


async def test_answer_that_is_too_large_is_not_kept(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 1000)

    async def script(line: Line) -> None:
        await line.request()
        await line.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n" + b"x" * 2000)
        await line.reader.read()

    engine.script = script
    with pytest.raises(FetchError, match="over 1000 bytes"):
        await engine.ask()
    await gone(engine.pool)


async def test_kept_connection_that_was_closed_is_tried_anew(engine: Engine) -> None:
    async def script(line: Line) -> None:
        await line.request()
        await line.send(OK)
        await line.request()  # and closes without an answer

    engine.script = script
    for _ in range(3):
        assert (await engine.ask()).body == b"{}"
    assert engine.lines == 3


async def test_first_connection_that_is_closed_is_an_error(engine: Engine) -> None:
    async def script(line: Line) -> None:
        await line.request()

    engine.script = script
    with pytest.raises(FetchError):
        await engine.ask()
    assert engine.lines == 1


async def test_whoever_gives_up_waiting_leaves_nothing(engine: Engine) -> None:
    async def script(line: Line) -> None:
        await line.request()
        await line.reader.read()

    engine.script = script
    task = asyncio.create_task(engine.ask())
    async with asyncio.timeout(5):
        while not engine.lines:
            await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await gone(engine.pool)
