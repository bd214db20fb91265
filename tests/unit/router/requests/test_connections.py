"""Connections on both sides: kept, used again while that is safe, and without delay."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest
from tests.unit.router.asking import CHAT, CHAT_PATH, NO_POLLS, STREAMED, failures
from tests.unit.router.conftest import Lab, RunningRouter
from tests.unit.router.raw_server import Line, raw_server
from tests.unit.router.stub_engine import StubEngine, answer, whole


@pytest.mark.parametrize("body", [CHAT, STREAMED])
async def test_ten_requests_in_turn_use_one_connection_to_each_engine(lab: Lab, body: object) -> None:
    router = await lab.router(**NO_POLLS)
    for _ in range(10):
        assert (await router.post(CHAT_PATH, body))[0] == 200
        await router.until_idle()
    for engine in router.engines:
        assert (len(engine.seen), len(engine.peers)) == (10, 1)


async def test_requests_at_once_leave_connections_for_the_next(lab: Lab) -> None:
    router = await lab.router(**NO_POLLS)
    for _ in range(2):
        codes = await asyncio.gather(*(router.post(CHAT_PATH, CHAT) for _ in range(8)))
        assert {code for code, _ in codes} == {200}
        await router.until_idle()
    for engine in router.engines:
        assert len(engine.seen) == 16
        assert len(engine.peers) <= 9, "eight, and the one of the health check"


async def test_both_sides_send_without_delay(router: RunningRouter) -> None:
    """TCP_NODELAY: else each token of a slow stream would wait for the one before to be acknowledged."""
    await router.post(CHAT_PATH, STREAMED)
    accepted = [c.transport for c in router.clients.server_state.connections]
    opened = [c.transport for w in router.state.workers.workers for c in w.pool._open]
    assert len(accepted) == 1
    assert len(opened) >= 2
    for transport in (*accepted, *opened):
        assert transport is not None
        sock = transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_client_that_takes_nothing_is_dropped_by_the_kernel_too(router: RunningRouter) -> None:
    await router.post(CHAT_PATH, CHAT)
    [client] = router.clients.server_state.connections
    sock = client.transport.get_extra_info("socket")
    seconds = router.state.config.deadlines.client_stall
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == seconds * 1000


async def test_engine_that_says_close_is_not_asked_on_that_connection(lab: Lab) -> None:
    router = await lab.router(**NO_POLLS)

    async def closing(engine: StubEngine, request, seen):  # type: ignore[no-untyped-def]
        response = await answer(engine, request, seen)
        response.force_close()
        return response

    router.decode.behave = closing
    for number in range(1, 4):
        assert (await router.post(CHAT_PATH, CHAT))[0] == 200
        await router.until_idle()
        assert len(router.decode.peers) == number
        assert len(router.prefill.peers) == 1


@pytest.mark.parametrize("extra", [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", b"garbage\r\n\r\n"])
async def test_bytes_after_an_answer_are_nobodys(lab: Lab, extra: bytes) -> None:
    """The next request must not get them for its answer."""
    router = await lab.router(**NO_POLLS)

    async def script(line: Line) -> None:
        while True:
            _, body = await line.request()
            told = json.dumps(
                {"n": line.number, "room": json.loads(body)["bootstrap_room"], "choices": []}
            ).encode()
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(
                told
            )
            await line.send(head + told)
            await line.send(extra)

    async with raw_server(script) as server:
        decode = router.state.workers.worker(router.decode.url)
        assert decode is not None
        decode.pool.drop_idle()
        decode.pool.port = int(server.url.rsplit(":", 1)[1])
        for number in range(1, 5):
            code, body = await router.post(CHAT_PATH, CHAT)
            assert code == 200
            got = json.loads(body)
            await router.until_idle()
            assert got["room"] == router.prefill.prompts[-1]["bootstrap_room"]
            await router.until(lambda n=number: server.ended == n)  # type: ignore[misc]
            assert got["n"] == number, "each on a connection of its own"
        assert decode.pool.connections == 0


async def test_leg_that_was_ended_closes_its_connection(router: RunningRouter) -> None:
    """Half an answer is on it: whoever came next would read the other half."""
    gate = asyncio.Event()

    async def slow(engine: StubEngine, request, seen):  # type: ignore[no-untyped-def]
        await gate.wait()
        return await answer(engine, request, seen)

    router.decode.behave = slow
    task = asyncio.create_task(router.post(CHAT_PATH, CHAT))
    await router.until(lambda: bool(router.decode.seen))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await router.until_idle()
    router.decode.behave = answer
    gate.set()
    code, body = await router.post(CHAT_PATH, CHAT)
    assert (code, json.loads(body)) == (200, whole(router.decode.seen[-1]))


async def test_restarted_engine_is_asked_on_new_connections(router: RunningRouter) -> None:
    await router.post(CHAT_PATH, CHAT)
    await router.until_idle()
    await router.decode.stop()
    router.decode.peers.clear()
    assert router.decode.status is not None
    router.decode.status.started_at += 1
    await router.decode.start()
    decode = router.state.workers.worker(router.decode.url)
    assert decode is not None
    await router.until(lambda: decode.status == router.decode.status and not decode.trouble)
    assert (await router.post(CHAT_PATH, CHAT))[0] == 200
    assert failures(router, router.decode, "broken") == 0


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
@pytest.mark.parametrize("body", [CHAT, STREAMED])
async def test_clients_connection_is_kept_as_its_version_says(
    router: RunningRouter, version: bytes, body: object
) -> None:
    raw = json.dumps(body).encode()
    request = b"POST %b HTTP/%b\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b"
    host, port = router.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request % (CHAT_PATH.encode(), version, len(raw), raw))
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    if version == b"1.0":
        assert b"connection: close" in head.lower()
        assert b"transfer-encoding" not in head.lower()
        rest = await asyncio.wait_for(reader.read(), 5)
        assert rest.endswith(b"[DONE]\n\n" if body is STREAMED else b"}")
    else:
        assert b"connection: close" not in head.lower()
        end = b"0\r\n\r\n" if body is STREAMED else b'"total_tokens": 5}}'
        await asyncio.wait_for(reader.readuntil(end), 5)
        writer.write(request % (CHAT_PATH.encode(), version, len(raw), raw))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    writer.close()
