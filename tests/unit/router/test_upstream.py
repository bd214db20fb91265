"""One leg's connection: what goes wrong has a name, and nothing is waited for without end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from multidict import CIMultiDict
from tests.unit.router.conftest import Lab, brief
from tests.unit.router.stub_engine import StubEngine, hang, replies, reset, status, streams

from plait.router.answers import EngineError
from plait.router.config import PrefillTarget, RouterConfig
from plait.router.pairing import Side
from plait.router.leg import Clock, FailureKind, Leg, LegError, open_session, read_all, sent
from plait.router.workers import Worker


class Line:
    """One engine, and a leg to it."""

    def __init__(self, engine: StubEngine, session: aiohttp.ClientSession, config: RouterConfig) -> None:
        self.engine = engine
        self.session = session
        self.config = config
        worker = Worker(engine.url, Side.PREFILL)
        self.leg = Leg(worker, "/generate", CIMultiDict({"x-a": "1"}), b'{"rid":"r"}', rids=("r",))

    async def fetch(self, *, limit: int = 1000) -> bytes:
        async with sent(self.session, self.leg, self.config) as (response, clock):
            return await read_all(response, clock, side=Side.PREFILL, idle=0.2, limit=limit)

    async def failure(self, **how: Any) -> LegError:
        with pytest.raises(LegError) as caught:
            await asyncio.wait_for(self.fetch(**how), 3)
        assert caught.value.side is Side.PREFILL
        return caught.value


@pytest.fixture
async def line(lab: Lab) -> AsyncIterator[Line]:
    engine = await lab.engine("prefill")
    config = RouterConfig(
        prefill=[PrefillTarget(engine.url, 1)], decode=["http://d"], deadlines=brief(first_byte=1.0)
    )
    async with open_session(config) as session:
        yield Line(engine, session, config)


async def test_whole_answer_is_read(line: Line) -> None:
    line.engine.behave = replies({"a": 1})
    assert await line.fetch() == b'{"a": 1}'
    assert line.engine.seen[0].headers["x-a"] == "1"
    assert line.engine.seen[0].raw == b'{"rid":"r"}'


async def test_refused(line: Line) -> None:
    await line.engine.stop()
    failure = await line.failure()
    assert (failure.kind, failure.error.status, failure.to_blame) == (FailureKind.REFUSED, 502, True)


async def test_name_that_does_not_resolve_is_refused(line: Line) -> None:
    line.leg.url = "http://no-such-host.invalid:1/generate"
    assert (await line.failure()).kind is FailureKind.REFUSED


async def test_broken(line: Line) -> None:
    line.engine.behave = reset
    assert (await line.failure()).kind is FailureKind.BROKEN
    line.engine.behave = streams([b"x"], then="die")
    assert (await line.failure()).kind is FailureKind.BROKEN


async def test_late_first_byte_and_late_rest(line: Line) -> None:
    line.engine.behave = hang
    failure = await line.failure()
    assert (failure.kind, failure.error.status) == (FailureKind.TIMEOUT, 504)
    assert "first byte" in str(failure)
    line.engine.behave = streams([b"x"], then="stall")
    assert "the rest" in str(await line.failure())


async def test_answer_over_the_limit(line: Line) -> None:
    line.engine.behave = streams([b"x" * 400] * 3, then="stall")
    assert (await line.failure(limit=1000)).kind is FailureKind.TOO_LARGE


@pytest.mark.parametrize(
    ("code", "told"), [(400, 400), (404, 404), (422, 422), (429, 429), (503, 503), (500, 502)]
)
async def test_status_goes_on_or_becomes_a_bad_gateway(line: Line, code: int, told: int) -> None:
    line.engine.behave = status(code, "why")
    failure = await line.failure()
    assert (failure.kind, failure.error.status) == (FailureKind.STATUS, told)
    assert "why" in failure.error.message
    assert failure.to_blame is (code >= 500)


async def test_redirect_is_not_followed(line: Line) -> None:
    async def behave(engine: StubEngine, request: web.Request, seen: Any) -> web.Response:
        return web.Response(status=307, headers={"location": engine.url + "/generate"})

    line.engine.behave = behave
    assert (await line.failure()).error.status == 502
    assert len(line.engine.seen) == 1


async def test_leaving_an_answer_unread_closes_the_connection(line: Line) -> None:
    line.engine.behave = streams([b"x"], then="stall")
    async with sent(line.session, line.leg, line.config) as (response, _):
        await response.content.readany()
    async with asyncio.timeout(1):
        while not line.engine.left:
            await asyncio.sleep(0.01)


async def test_answer_read_to_its_end_keeps_the_connection(line: Line) -> None:
    peers = set()

    async def behave(engine: StubEngine, request: web.Request, seen: Any) -> web.Response:
        assert request.transport is not None
        peers.add(request.transport.get_extra_info("peername"))
        return web.Response(body=b"x")

    line.engine.behave = behave
    for _ in range(3):
        await line.fetch()
    assert len(peers) == 1


async def test_own_cancellation_is_not_a_leg_failure(line: Line) -> None:
    line.engine.behave = hang
    task = asyncio.create_task(line.fetch())
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_clock_stops_and_goes_on() -> None:
    async with asyncio.timeout(0.01) as timeout:
        clock = Clock(timeout)
        clock.stop()
        await asyncio.sleep(0.03)
        clock.allow(5, "x")
        await asyncio.sleep(0.03)
        assert clock.waiting_for == "x"


def test_engines_words_go_to_the_client() -> None:
    said = EngineError("too long", 400, "BadRequest", "max_tokens")
    error = LegError.said(Side.DECODE, said, kind=FailureKind.ABORTED).error
    assert (error.status, error.message, error.type, error.param) == (
        400,
        "too long",
        "BadRequest",
        "max_tokens",
    )
    assert error.code == "decode_aborted"
    unnamed = LegError.said(Side.DECODE, EngineError("gone"), kind=FailureKind.ABORTED).error
    assert (unnamed.status, unnamed.type) == (502, "server_error")
