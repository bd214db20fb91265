"""Requests that are too large, too slow or malformed: a 4xx in OpenAI's form, then the connection ends."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import NamedTuple

import pytest
from tests.router.harness.bench import Bench, complete, prompt_bytes
from tests.router.harness.client import Wire, request_bytes
from tests.router.mocks.answers import CHAT
from tests.router.mocks.plan import Plan

pytestmark = pytest.mark.asyncio(loop_scope="session")

# The limit of the shared bench.
MAX_BODY = 1 << 20
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\ncontent-type: application/json\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


class Bad(NamedTuple):
    """What a client sends, and the statuses that say what is wrong with it."""

    data: bytes
    statuses: tuple[int, ...]


BAD = {
    "a body whose length is over the limit": Bad(
        HEAD + b"content-length: %d\r\n\r\n" % (MAX_BODY + 1), (413,)
    ),
    "a body that goes over the limit in chunks": Bad(
        CHUNKED + b"".join(b"%x\r\n%b\r\n" % (1 << 16, b"x" * (1 << 16)) for _ in range(17)), (413,)
    ),
    "a length that no integer holds": Bad(HEAD + b"content-length: %b\r\n\r\n" % (b"9" * 40), (400, 413)),
    "1,000 headers": Bad(HEAD + b"".join(b"x-%d: y\r\n" % n for n in range(1000)) + b"\r\n", (431,)),
    "a header of 1 MiB": Bad(HEAD + b"x-big: " + b"y" * (1 << 20) + b"\r\n\r\n", (431,)),
    "headers without an end": Bad(HEAD + b"x-more: yyyyyyyyyyyyyyyyyyyyy\r\n" * 40_000, (431,)),
    "a request line of 1 MiB": Bad(b"POST /" + b"a" * (1 << 20) + b" HTTP/1.1\r\n\r\n", (414, 431, 400)),
    "a chunk size that is no number": Bad(CHUNKED + b"zz\r\nab\r\n0\r\n\r\n", (400,)),
    "a negative chunk size": Bad(CHUNKED + b"-5\r\nabcde\r\n0\r\n\r\n", (400,)),
    "a chunk size that no integer holds": Bad(CHUNKED + b"f" * 32 + b"\r\nab\r\n0\r\n\r\n", (400, 413)),
    "a chunk longer than its size": Bad(CHUNKED + b"2\r\nabcdef\r\n0\r\n\r\n", (400,)),
    "no length of a chunk at all": Bad(CHUNKED + b"\r\nab\r\n0\r\n\r\n", (400,)),
    "no HTTP": Bad(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n", (400,)),
    "no version": Bad(b"POST /v1/chat/completions\r\n\r\n", (400,)),
    "a header without a name": Bad(HEAD + b": y\r\n\r\n", (400,)),
}


@pytest.mark.parametrize("name", BAD)
async def test_bad_request_is_told_and_its_connection_ends(it: Bench, name: str) -> None:
    bad = BAD[name]
    total = it.book.total
    with contextlib.closing(await Wire.open(it.router.port)) as wire:
        began = time.monotonic()
        # A router may answer and close before it has read all: what is left to send then fails.
        with contextlib.suppress(ConnectionError):
            await wire.send(bad.data)
        reply = await wire.reply()
        assert reply.status in bad.statuses, (reply.status, reply.body)
        assert reply.headers["content-type"] == "application/json"
        assert reply.error["type"] == "invalid_request_error"
        assert reply.headers.get("connection", "").lower() == "close"
        assert await wire.until_closed() == b""
        assert time.monotonic() - began < it.within(2.0)
    assert it.book.total == total, "it reached an engine"


async def test_bad_requests_by_the_hundred_leave_nothing(it: Bench) -> None:
    """Also where the client does not wait for its answer."""
    memory = it.router.rss()
    for _ in range(4):
        wires = [await Wire.open(it.router.port) for _ in range(50)]
        for number, wire in enumerate(wires):
            bad = list(BAD.values())[number % len(BAD)]
            wire.writer.write(bad.data[: 1 << 16])
        await asyncio.sleep(0.1)
        for number, wire in enumerate(wires):
            wire.reset() if number % 2 else wire.close()
    deadline = time.monotonic() + it.within(5)
    while left := it.router.sockets(at_port=it.router.port):
        if all(s.endswith("TIME_WAIT") for s in left):
            break
        assert time.monotonic() < deadline, left
        await asyncio.sleep(0.1)
    assert it.router.rss() - memory < 16 << 20


async def test_requests_that_are_pipelined_are_answered_in_order(it: Bench) -> None:
    plans = [Plan(f"pipe-{n}", events=n + 1) for n in range(8)]
    with contextlib.closing(await Wire.open(it.router.port)) as wire:
        await wire.send(b"".join(prompt_bytes(p, streamed=bool(n % 2)) for n, p in enumerate(plans)))
        for number, plan in enumerate(plans):
            reply = await wire.reply()
            assert complete(reply, plan, streamed=bool(number % 2)), reply.body
            assert reply.body.count(b" a") == plan.events


async def test_malformed_request_behind_a_good_one(it: Bench) -> None:
    """The good one is answered; what follows is told, and the connection ends."""
    plan = Plan("good", events=5)
    with contextlib.closing(await Wire.open(it.router.port)) as wire:
        await wire.send(prompt_bytes(plan, streamed=False) + b"\x00\x01\x02 nonsense\r\n\r\n")
        replies = await wire.until_closed()
    assert replies.count(b"HTTP/1.1 ") in (1, 2)
    assert replies.startswith((b"HTTP/1.1 200", b"HTTP/1.1 400"))
    if replies.startswith(b"HTTP/1.1 200"):
        assert b" a a a a a" in replies


async def test_client_that_leaves_with_requests_in_its_pipe(it: Bench) -> None:
    """The one under way is aborted, and those behind it never start."""
    with contextlib.closing(await Wire.open(it.router.port)) as wire:
        await wire.send(b"".join(prompt_bytes(Plan("pipe", decode="hang"), streamed=True) for _ in range(5)))
        await it.until(lambda: len(it.book.by_tag["pipe"]) == 2, "the first is under way")
        await asyncio.sleep(0.1)
        wire.reset()
    await it.idle()
    assert len(it.book.by_tag["pipe"]) == 2
    decode = next(leg for leg in it.book.by_tag["pipe"] if leg.engine.role == "decode")
    await it.until(lambda: decode.aborted_at is not None, "the engine is told")


async def test_slow_headers_are_given_up(it: Bench) -> None:
    await _drips(it, HEAD + b"x-slow: ", b"y")


async def test_slow_body_is_given_up(it: Bench) -> None:
    await _drips(it, HEAD + b"content-length: 1000\r\n\r\n{", b" ")


async def test_connection_that_says_nothing_ends(it: Bench) -> None:
    with contextlib.closing(await Wire.open(it.router.port)) as wire:
        async with asyncio.timeout(it.within(6)):
            said = await wire.until_closed()
    assert said == b"" or b" 408 " in said.split(b"\r\n")[0]


async def test_many_slow_clients_slow_nobody(it: Bench) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            wire = stack.enter_context(contextlib.closing(await Wire.open(it.router.port)))
            await wire.send(HEAD)
        plan = Plan("beside")
        replies = await asyncio.gather(*(it.prompt(plan, streamed=True) for _ in range(20)))
        assert all(complete(r, plan, streamed=True) for r in replies)
        assert max(r.seconds for r in replies) < it.within(0.5)


async def _drips(it: Bench, start: bytes, more: bytes) -> None:
    """A byte now and then holds no connection for longer than the limit: 408."""
    total = it.book.total
    with contextlib.closing(await Wire.open(it.router.port)) as wire:
        began = time.monotonic()
        await wire.send(start)
        answer = asyncio.create_task(wire.reply())
        try:
            while not answer.done():
                assert time.monotonic() - began < it.within(6), "still held"
                with contextlib.suppress(ConnectionError):
                    await wire.send(more)
                await asyncio.sleep(0.1)
        except BaseException:
            answer.cancel()
            raise
        reply = await answer
        assert reply.status == 408
        assert reply.error["type"] == "invalid_request_error"
        assert await wire.until_closed() == b""
    assert it.book.total == total


async def test_expectation_is_met(it: Bench) -> None:
    """A client that asks first is told to go on."""
    body = prompt_bytes(Plan("expects"), streamed=False).split(b"\r\n\r\n", 1)[1]
    with contextlib.closing(await Wire.open(it.router.port)) as wire:
        head = request_bytes("POST", CHAT, body, expect="100-continue").removesuffix(body)
        await wire.send(head)
        first = await asyncio.wait_for(wire.reader.readuntil(b"\r\n\r\n"), 10)
        assert first.startswith(b"HTTP/1.1 100")
        await wire.send(body)
        assert (await wire.reply()).status == 200
