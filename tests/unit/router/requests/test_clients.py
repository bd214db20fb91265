"""Clients that leave, at any time, and clients that read nothing: engines are told, memory is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Iterator

import pytest
from aiohttp import web
from tests.unit.router.asking import (
    CHAT,
    CHAT_PATH,
    NO_POLLS,
    STREAMED,
    assert_ended,
    outcomes,
    stream_error,
)
from tests.unit.router.conftest import Lab, RunningRouter, brief
from tests.unit.router.stub_engine import (
    DONE,
    Seen,
    StubEngine,
    chat_events,
    hang,
    stream,
    streams,
    wait_for_ever,
)

from plait.router.exchange import Exchange

EVENT = b"data: " + b"x" * 65_000 + b"\n\n"


# --- clients that leave ------------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
async def test_client_that_leaves_before_the_first_token_ends_both(
    router: RunningRouter, streamed: bool
) -> None:
    router.prefill.behave, router.decode.behave = hang, wait_for_ever
    task = asyncio.create_task(router.post(CHAT_PATH, STREAMED if streamed else CHAT))
    await router.until(lambda: bool(router.prefill.seen and router.decode.seen))
    task.cancel()
    left = time.monotonic()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await assert_ended(router, router.prefill, router.decode, by=left)
    # Their connections are closed too, for an engine that has not entered the request yet.
    await router.until(lambda: bool(router.prefill.left))
    assert outcomes(router, "client_gone") == 1
    assert not any(sum(w.breaker._bad) for w in router.state.workers.workers)


async def test_client_that_leaves_in_the_stream_ends_both(router: RunningRouter) -> None:
    router.prefill.behave = hang
    router.decode.behave = streams(chat_events(["a", "b"])[:2], then="stall")
    response = await router.http.post(router.url + CHAT_PATH, json=STREAMED)
    await response.content.readany()
    response.close()
    left = time.monotonic()
    await assert_ended(router, router.prefill, router.decode, by=left)
    await router.until(lambda: bool(router.prefill.left and router.decode.left))
    assert outcomes(router, "client_gone") == 1


async def test_client_that_leaves_while_it_is_connected_for(lab: Lab) -> None:
    """Nothing has been sent yet, and nothing is."""
    router = await lab.router(deadlines=brief(connect=30.0), **NO_POLLS)
    # A listener whose queue is full: connects are neither taken nor refused.
    with socket.socket() as full, contextlib.ExitStack() as held:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            filler = held.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        for worker in router.state.workers.workers:
            worker.pool.drop_idle()
            worker.pool.port = full.getsockname()[1]
        task = asyncio.create_task(router.post(CHAT_PATH, CHAT))
        await router.until(lambda: any(w.pool._connecting for w in router.state.workers.workers))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await router.until_idle()
        assert outcomes(router, "client_gone") == 1
        legs = [w.pool._connecting for w in router.state.workers.workers]
        # Only the abort messages may still be on their way.
        await router.until(lambda: sum(map(len, legs)) <= router.state.aborts.under_way)


async def test_client_that_leaves_while_it_sends_its_body(router: RunningRouter) -> None:
    host, port = router.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{"
    writer.write(head)
    await writer.drain()
    writer.transport.abort()
    assert (await router.post("/generate", {"text": "x"}))[0] == 200
    assert len(router.prefill.seen) == 1


async def test_client_that_leaves_is_noticed_behind_its_pipelined_requests(router: RunningRouter) -> None:
    router.prefill.behave, router.decode.behave = hang, wait_for_ever
    body = json.dumps(CHAT).encode()
    request = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b"
    with raw_client(router, request % (CHAT_PATH.encode(), len(body), body) * 3):
        await router.until(lambda: bool(router.prefill.seen and router.decode.seen))
        left = time.monotonic()
    await assert_ended(router, router.prefill, router.decode, by=left)
    # Those behind it never came to an engine.
    assert len(router.prefill.seen) == 1


# --- clients that read nothing -----------------------------------------------------------------------------


@contextlib.contextmanager
def raw_client(router: RunningRouter, sent: bytes | None = None) -> Iterator[socket.socket]:
    """A client that has asked for a stream, and reads only what the test lets it."""
    host, port = router.url.removeprefix("http://").split(":")
    body = json.dumps(STREAMED).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    with socket.socket() as client:
        # So that the kernel does not hold megabytes of it.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        client.connect((host, int(port)))
        client.sendall(head + body if sent is None else sent)
        client.setblocking(False)
        yield client


class Flood:
    """A decode engine with more to say than anybody buffers."""

    def __init__(self, events: int) -> None:
        self.events = events
        self.written = 0
        self.done = False

    async def __call__(self, _: StubEngine, request: web.Request, seen: Seen) -> web.StreamResponse:
        response = await stream(request, [])
        for _ in range(self.events):
            await response.write(EVENT)
            self.written += len(EVENT)
        await response.write(DONE)
        self.done = True
        return response


def held(router: RunningRouter) -> int:
    """Bytes that the router itself holds of the one stream under way; the kernel's buffers come on top."""
    [exchange] = router.state.lifecycle._running
    assert isinstance(exchange, Exchange)
    assert exchange._attempt is not None
    [leg] = exchange._attempt.decodes
    return leg._size + exchange.client._transport.get_write_buffer_size()


def is_cut_off(client: socket.socket) -> bool:
    """Whether the connection has ended, and the answer has not."""
    tail = b""
    try:
        while data := client.recv(1 << 20):
            tail = (tail + data)[-5:]
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
    assert tail != b"0\r\n\r\n"
    return True


async def still(flood: Flood) -> int:
    """Waits until the engine gets no further."""
    before = -1
    while flood.written != before or not before:
        before = flood.written
        await asyncio.sleep(0.1)
    return before


async def test_slow_client_makes_the_engine_wait_and_gets_all(router: RunningRouter) -> None:
    flood = Flood(600)  # 39 MB
    router.decode.behave = flood
    with raw_client(router) as client:
        await still(flood)
        assert not flood.done
        assert held(router) < 1 << 20
        # Others are not held up by it.
        router.decode.behave = streams(chat_events(["a"]))
        assert (await router.post(CHAT_PATH, STREAMED))[0] == 200
        loop, got = asyncio.get_running_loop(), 0
        tail = b""
        async with asyncio.timeout(20):
            while not tail.endswith(b"0\r\n\r\n"):
                data = await loop.sock_recv(client, 1 << 20)
                assert data, "the stream broke"
                got += len(data)
                tail = (tail + data)[-100:]
        assert got > 600 * len(EVENT)
        assert DONE in tail
    await router.until_idle()
    assert not router.decode.aborts
    assert outcomes(router, "ok") == 2


async def test_connection_is_used_again_after_a_slow_client(router: RunningRouter) -> None:
    """Whose engine finished just as it was made to wait: the next request must be read all the same."""
    router.decode.behave = Flood(120)
    with raw_client(router) as client:
        async with asyncio.timeout(20):
            while not outcomes(router, "ok"):
                with contextlib.suppress(BlockingIOError):
                    client.recv(1 << 20)
                await asyncio.sleep(0)
    decode = router.state.workers.worker(router.decode.url)
    assert decode is not None
    router.decode.behave = streams(chat_events(["a"]))
    for _ in range(2):
        code, body = await asyncio.wait_for(router.post(CHAT_PATH, STREAMED), 10)
        assert (code, body.count(b"[DONE]")) == (200, 1)


async def test_client_that_reads_nothing_is_given_up(lab: Lab) -> None:
    router = await lab.router(deadlines=brief(client_stall=0.5))
    flood = Flood(2000)
    router.prefill.behave, router.decode.behave = hang, flood
    with raw_client(router) as client:
        await router.until(lambda: bool(router.decode.aborts))
        await router.until_idle()
        assert not flood.done
        assert outcomes(router, "client_gone") == 1
        # Its connection is closed, with what it had not taken.
        await router.until(lambda: is_cut_off(client))


async def test_client_that_reads_again_in_time_is_not_given_up(lab: Lab) -> None:
    router = await lab.router(deadlines=brief(client_stall=5.0))
    flood = Flood(2000)
    router.decode.behave = flood
    since = []
    with raw_client(router) as client:
        async with asyncio.timeout(20):
            for _ in range(3):
                await still(flood)
                [exchange] = router.state.lifecycle._running
                assert isinstance(exchange, Exchange)
                since.append(exchange._stalled_at)
                before = flood.written
                while flood.written < before + (2 << 20):
                    await asyncio.get_running_loop().sock_recv(client, 1 << 20)
        # A stall is as long as nothing is taken, not as the request.
        assert 0 < since[0] < since[1] < since[2]
        assert not outcomes(router, "client_gone")


async def test_engine_that_fails_while_its_client_is_slow(router: RunningRouter) -> None:
    """What had come is there to be read, and then the error."""

    async def fail(_: StubEngine, request: web.Request, seen: Seen) -> web.StreamResponse:
        response = await stream(request, [])
        for _ in range(100):
            await response.write(EVENT)
        return response

    router.decode.behave = fail
    with raw_client(router) as client:
        loop, got = asyncio.get_running_loop(), b""
        await asyncio.sleep(0.3)
        async with asyncio.timeout(20):
            while not got.endswith(b"0\r\n\r\n"):
                data = await loop.sock_recv(client, 1 << 20)
                assert data, "the stream broke"
                got += data
    assert got.count(EVENT[:20]) == 100
    last = got.rsplit(b"data: {", 1)[1]
    assert stream_error(b"data: {" + last.split(b"\r\n")[0])["code"] == "decode_broken"


async def test_router_that_ends_does_not_wait_for_a_slow_client(router: RunningRouter) -> None:
    flood = Flood(2000)
    router.prefill.behave, router.decode.behave = hang, flood
    with raw_client(router):
        await still(flood)
        began = time.monotonic()
        assert await router.state.lifecycle.drain(seconds=0.05) is False
        assert time.monotonic() - began < router.within(0.5)
        await router.until_idle()
    await router.until(lambda: bool(router.prefill.aborts and router.decode.aborts))
