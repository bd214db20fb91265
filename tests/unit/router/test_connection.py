"""A client's connection: limits for the open net, errors in one form, and prompts in their order."""

from __future__ import annotations

import asyncio
import json
import socket
import time

import pytest
from tests.unit.router.asking import CHAT, CHAT_PATH, STREAMED, outcomes
from tests.unit.router.conftest import Lab, RunningRouter, brief
from tests.unit.router.stub_engine import StubEngine, answer, chat_events, hang, streams
from tests.unit.router.wire import request, wire

from plait.router import connection

ASKED = request(CHAT)


async def strict(lab: Lab, **settings: object) -> RunningRouter:
    """A router whose limits are met soon."""
    how = {"deadlines": brief(head=0.4, body=0.4), "max_head_bytes": 2000, "max_headers": 20}
    return await lab.router(**(how | settings))


# --- the head ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"P", b"POST /generate HTTP/1.1\r\n", ASKED[:40]])
async def test_head_that_does_not_come_has_an_end(lab: Lab, sent: bytes) -> None:
    router = await strict(lab)
    began = time.monotonic()
    async with wire(router.url) as client:
        await client.send(sent)
        got = await client.answer()
        assert 0.3 < time.monotonic() - began < router.within(0.8)
        assert (got.status, got.error["code"]) == (408, "head_timeout")
        assert got.headers["connection"] == "close"
        assert await client.closed() == b""


async def test_head_that_comes_byte_by_byte_has_the_same_end(lab: Lab) -> None:
    router = await strict(lab)
    began = time.monotonic()
    async with wire(router.url) as client:
        dripping = asyncio.create_task(client.send(*(bytes([byte]) for byte in ASKED), pause=0.03))
        assert (await client.answer()).status == 408
        assert time.monotonic() - began < router.within(0.8)
        dripping.cancel()


async def test_connection_that_asks_for_nothing_is_closed_without_a_word(lab: Lab) -> None:
    router = await strict(lab)
    async with wire(router.url) as client:
        assert await client.closed() == b""


async def test_second_head_on_a_connection_has_an_end_too(lab: Lab) -> None:
    router = await strict(lab)
    async with wire(router.url) as client:
        await client.send(ASKED)
        assert (await client.answer()).status == 200
        await asyncio.sleep(0.6)
        await client.send(ASKED)
        assert (await client.answer()).status == 200, "idle is not slow"
        await client.send(ASKED[:40])
        assert (await client.answer()).status == 408


@pytest.mark.parametrize("path", [CHAT_PATH, "/health"])
async def test_head_that_is_too_large(lab: Lab, path: str) -> None:
    router = await strict(lab)
    async with wire(router.url) as client:
        await client.send(f"POST {path} HTTP/1.1\r\nhost: x\r\nx-a: ".encode(), *[b"y" * 1100] * 2)
        got = await client.answer()
        assert (got.status, got.error["code"]) == (431, "headers_too_large")
        assert "2000 bytes" in got.error["message"]
        assert await client.closed() == b""


@pytest.mark.parametrize("path", [CHAT_PATH, "/health"])
async def test_too_many_headers(lab: Lab, path: str) -> None:
    router = await strict(lab)
    async with wire(router.url) as client:
        await client.send(request(CHAT, path, headers=tuple(f"x-{i}: 1" for i in range(20))))
        got = await client.answer()
        assert (got.status, got.error["code"]) == (431, "headers_too_large")
        assert "20 headers" in got.error["message"]
        assert await client.closed() == b""
    assert not router.prefill.seen


async def test_as_many_headers_as_the_limit_are_served(lab: Lab) -> None:
    router = await strict(lab)
    async with wire(router.url) as client:
        await client.send(request(CHAT, headers=tuple(f"x-{i}: 1" for i in range(18))))
        assert (await client.answer()).status == 200


async def test_bytes_of_a_body_are_none_of_the_next_head(lab: Lab) -> None:
    router = await strict(lab)
    large = request(CHAT | {"padding": "x" * 50_000})
    async with wire(router.url) as client:
        for _ in range(3):
            # Both body and head in pieces: neither may be taken for the other.
            await client.send(large[:100], large[100:30_000], large[30_000:])
            assert (await client.answer()).status == 200
            await client.send(ASKED[:30], ASKED[30:])
            assert (await client.answer()).status == 200


MALFORMED = {
    "no HTTP": b"hello\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "no version": b"GET /\r\n\r\n",
    "another version": request(method="GET", path="/health", version="2.0"),
    "an old version": request(method="GET", path="/health", version="0.9"),
    "an unknown method": request(method="FROB", path="/health"),
    "no host": request(CHAT, host=None),
    "two hosts": request(CHAT, headers=("host: y",)),
    "no host of another route": request(method="GET", path="/health", host=None),
    "two hosts of another route": request(method="GET", path="/health", headers=("host: y",)),
    "a header without a name": request(CHAT, headers=(": x",)),
    "a header without a colon": request(CHAT, headers=("x",)),
    "a space before the colon": request(CHAT, headers=("x : y",)),
    "a folded header": request(CHAT, headers=("x: y", " z")),
    "a NUL in a header": request(CHAT, headers=("x: a\0b",)),
    "a length that is none": request(headers=("content-length: x",)),
    "a length below zero": request(headers=("content-length: -1",)),
    "two lengths": request(CHAT, headers=("content-length: 3",)),
    "length and chunks": request(CHAT, headers=("transfer-encoding: chunked",)),
    "another transfer coding": request(headers=("transfer-encoding: gzip",)),
    "a chunk without a size": request(headers=("transfer-encoding: chunked",)) + b"\r\n\r\n",
    "a chunk of no size": request(headers=("transfer-encoding: chunked",)) + b"zz\r\n{}\r\n0\r\n\r\n",
    "a chunk that is longer than it says": request(headers=("transfer-encoding: chunked",))
    + b"1\r\n{}\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_malformed_requests(router: RunningRouter, name: str) -> None:
    async with wire(router.url) as client:
        await client.send(MALFORMED[name])
        got = await client.answer()
        assert got.status == 400
        assert got.error["code"] == "malformed_http"
        assert got.error["type"] == "invalid_request_error"
        assert got.headers["content-type"] == "application/json"
        assert await client.closed() == b""
    assert not router.prefill.seen
    # Nobody else is held up.
    assert (await router.post(CHAT_PATH, CHAT))[0] == 200


@pytest.mark.parametrize("what", ["websocket", "h2c"])
async def test_request_to_speak_something_else_is_served_as_http(router: RunningRouter, what: str) -> None:
    headers = ("connection: Upgrade, HTTP2-Settings", f"upgrade: {what}", "http2-settings: AAEAAEAAAAIA")
    get = request(method="GET", path="/health", headers=headers)
    post = request(CHAT | {"user": "x" * 1000}, headers=headers)
    async with wire(router.url) as client:
        for cut in (len(post), 60, len(post) - 700):
            await client.send(get)
            got = await client.answer()
            assert (got.status, json.loads(got.body)) == (200, {"status": "ok"})
            await client.send(*filter(None, (post[:cut], post[cut:])))
            assert (await client.answer()).status == 200
        await client.send(get + post + ASKED)
        assert [(await client.answer()).status for _ in range(3)] == [200] * 3
        await client.send(request(CHAT, headers=("connection: upgrade, close", "upgrade: h2c")))
        assert (await client.answer()).headers["connection"] == "close"
        assert await client.closed() == b""
    assert [p.get("user", "") for p in router.prefill.prompts] == ["x" * 1000] * 4 + ["", ""]
    names = {name.lower() for seen in router.prefill.seen for name in seen.headers}
    assert not names & {"upgrade", "http2-settings"}


async def test_router_is_no_proxy(router: RunningRouter) -> None:
    async with wire(router.url) as client:
        await client.send(b"CONNECT example.org:443 HTTP/1.1\r\nhost: example.org:443\r\n\r\n")
        got = await client.answer()
        assert (got.status, got.error["code"]) == (400, "malformed_http")
        assert await client.closed() == b""


async def test_fault_of_the_router_at_a_head_is_told_and_no_fault_of_the_client(
    router: RunningRouter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("plait.router.routes.prompts.fresh_id", lambda: 1 / 0)
    async with wire(router.url) as client:
        await client.send(ASKED)
        got = await client.answer()
        assert (got.status, got.error["code"]) == (500, "router_fault")
    assert "ZeroDivisionError" in caplog.text


# --- the body ----------------------------------------------------------------------------------------------


async def test_body_that_nobody_waits_for_is_not_waited_for_either(lab: Lab) -> None:
    router = await strict(lab)
    async with wire(router.url) as client:
        await client.send(request(path="/v1/embeddings", headers=("content-length: 100",)) + b"{")
        assert (await client.answer()).status == 404
        assert await client.closed() == b""


@pytest.mark.parametrize("sent", [b"", b"{", b'{"messages": []'])
@pytest.mark.parametrize("port", ["clients", "admin"])
async def test_body_that_does_not_come_has_an_end(lab: Lab, sent: bytes, port: str) -> None:
    router = await strict(lab)
    url, path = (router.url, CHAT_PATH) if port == "clients" else (router.admin_url, "/api/v1/workers")
    head = request(path=path, headers=("content-length: 100", "content-type: application/json"))
    async with wire(url) as client:
        await client.send(head, *filter(None, [sent]))
        got = await client.answer()
        assert (got.status, got.error["code"]) == (408, "body_timeout")
        assert await client.closed() == b""
    assert not router.prefill.seen
    if port == "clients":
        assert outcomes(router, "refused") == 1


async def test_body_that_comes_slowly_but_in_time_is_served(lab: Lab) -> None:
    router = await strict(lab)
    async with wire(router.url) as client:
        for _ in range(2):
            await client.send(*(ASKED[i : i + 20] for i in range(0, len(ASKED), 20)), pause=0.01)
            assert (await client.answer()).status == 200


async def test_chunked_body_is_served(router: RunningRouter) -> None:
    body = json.dumps(CHAT).encode()
    head = request(headers=("transfer-encoding: chunked",))
    chunks = [b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:10], body[10:])]
    async with wire(router.url) as client:
        await client.send(head, *chunks, b"0\r\nx-trailer: 1\r\n\r\n")
        assert (await client.answer()).status == 200
    assert router.prefill.prompts[0]["messages"] == CHAT["messages"]


@pytest.mark.parametrize("how", ["by its length", "as it comes"])
async def test_body_that_is_too_large(lab: Lab, how: str) -> None:
    router = await lab.router(max_body_bytes=10_000)
    async with wire(router.url) as client:
        if how == "by its length":
            # Not a byte of it has to be sent.
            await client.send(request(headers=("content-length: 10001",)))
        else:
            chunk = b"1388\r\n" + b"x" * 5000 + b"\r\n"
            await client.send(request(headers=("transfer-encoding: chunked",)), chunk, chunk, chunk)
        got = await client.answer()
        assert (got.status, got.error["code"]) == (413, "body_too_large")
        assert got.headers["connection"] == "close"
        assert await client.closed() == b""
    assert outcomes(router, "refused") == 1


@pytest.mark.parametrize("why", ["body", "head", "malformed"])
async def test_refusal_reaches_a_client_that_is_still_sending(lab: Lab, why: str) -> None:
    """A close over bytes that nobody read is a reset, which takes the answer away from its client."""
    router = await lab.router(max_body_bytes=10_000)
    sent, status = {
        "body": (request(headers=("content-length: 9000000",)), 413),
        "head": (b"POST / HTTP/1.1\r\nx: " + b"y" * 100_000, 431),
        "malformed": (b"\x16\x03\x01 no HTTP\r\n\r\n", 400),
    }[why]
    loop, (host, _, port) = asyncio.get_running_loop(), router.url.removeprefix("http://").partition(":")
    # A plain socket: asyncio's streams forget what they have received once a write fails.
    with socket.create_connection((host, int(port)), timeout=20) as client:
        for piece in (sent, *[b"z" * 50_000] * 20):
            await loop.run_in_executor(None, client.sendall, piece)
            await asyncio.sleep(0.01)
        got = b""
        while part := await loop.run_in_executor(None, client.recv, 1 << 16):
            got += part
    assert got.startswith(b"HTTP/1.1 %d " % status)
    assert json.loads(got.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"


async def test_client_that_never_stops_sending_is_left_in_the_end(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_LEAVE_SECONDS", 0.3)
    router = await lab.router(max_body_bytes=10_000)
    async with wire(router.url) as client:
        await client.send(request(headers=("content-length: 90000000",)))
        assert (await client.answer()).status == 413
        assert await client.closed() == b""
        began = time.monotonic()

        async def send_on() -> None:
            while True:
                client.writer.write(b"z" * 1000)
                await client.writer.drain()
                await asyncio.sleep(0.01)

        async with asyncio.timeout(20):
            with pytest.raises(ConnectionError):
                await send_on()
        assert time.monotonic() - began < router.within(1.0)


async def test_body_of_the_limit_is_served(lab: Lab) -> None:
    router = await lab.router(max_body_bytes=len(json.dumps(CHAT)))
    assert (await router.post(CHAT_PATH, json.dumps(CHAT).encode()))[0] == 200


async def test_client_that_asks_whether_to_send_is_told_to(router: RunningRouter) -> None:
    body = json.dumps(CHAT).encode()
    head = request(headers=("expect: 100-continue", f"content-length: {len(body)}"))
    async with wire(router.url) as client:
        await client.send(head)
        assert (await client.answer()).status == 100
        await client.send(body)
        assert (await client.answer()).status == 200


async def test_client_that_asks_whether_to_send_too_much_is_told_not_to(lab: Lab) -> None:
    router = await lab.router(max_body_bytes=1000)
    async with wire(router.url) as client:
        await client.send(request(headers=("expect: 100-continue", "content-length: 5000")))
        assert (await client.answer()).status == 413


# --- several requests on one connection --------------------------------------------------------------------


async def test_requests_behind_each_other_are_answered_in_order(router: RunningRouter) -> None:
    async def late_for_the_first(engine: StubEngine, http, seen):  # type: ignore[no-untyped-def]
        await asyncio.sleep(0.1 if seen.body["user"] == "0" else 0)
        return await answer(engine, http, seen)

    router.decode.behave = late_for_the_first
    several = [request(CHAT | {"user": str(i)}, headers=(f"x-request-id: r{i}",)) for i in range(6)]
    several.insert(3, request(method="GET", path="/health"))
    async with wire(router.url) as client:
        await client.send(b"".join(several))
        got = [await client.answer() for _ in several]
        assert [a.status for a in got] == [200] * 7
        ids = [a.headers.get("x-request-id") for a in got]
        assert ids == ["r0", "r1", "r2", None, "r3", "r4", "r5"]
    assert [p["user"] for p in router.decode.prompts] == [str(i) for i in range(6)]


async def test_many_requests_behind_each_other_are_all_answered(router: RunningRouter) -> None:
    async with wire(router.url) as client:
        await client.send(ASKED * 60)
        assert [(await client.answer()).status for _ in range(60)] == [200] * 60


async def test_malformed_request_behind_a_good_one_ends_after_its_answer(router: RunningRouter) -> None:
    router.decode.behave = streams(chat_events(["a"]), pause=0.02)
    async with wire(router.url) as client:
        await client.send(request(STREAMED), b"garbage\r\n\r\n")
        got = await client.answer()
        assert (got.status, got.body.count(b"[DONE]")) == (200, 1)
        await client.closed()
    assert len(router.prefill.seen) == 1


async def test_refused_request_does_not_end_its_connection(router: RunningRouter) -> None:
    async with wire(router.url) as client:
        for sent, status in ((request(b"{"), 400), (request(b"{}", "/v1/x"), 404), (ASKED, 200)):
            await client.send(sent)
            assert (await client.answer()).status == status


@pytest.mark.parametrize(("method", "allow"), [("GET", "POST"), ("DELETE", "POST"), ("HEAD", "POST")])
async def test_wrong_method(router: RunningRouter, method: str, allow: str) -> None:
    async with wire(router.url) as client:
        await client.send(request(method=method), ASKED)
        got = await client.answer(head_only=method == "HEAD")
        assert (got.status, got.headers["allow"]) == (405, allow)
        if method != "HEAD":
            assert got.error["code"] == "wrong_method"
        assert (await client.answer()).status == 200


@pytest.mark.parametrize("target", [CHAT_PATH + "?a=b", "http://router" + CHAT_PATH, CHAT_PATH])
async def test_ways_to_write_a_route(router: RunningRouter, target: str) -> None:
    async with wire(router.url) as client:
        await client.send(request(CHAT, target))
        assert (await client.answer()).status == 200


@pytest.mark.parametrize(
    "target", ["//v1/chat/completions", CHAT_PATH + "/", CHAT_PATH.upper(), "/v1/../generate"]
)
async def test_routes_that_are_none(router: RunningRouter, target: str) -> None:
    async with wire(router.url) as client:
        await client.send(request(CHAT, target))
        got = await client.answer()
        assert (got.status, got.error["code"]) == (404, "unknown_route")
    assert not router.prefill.seen


async def test_client_that_leaves_early_leaves_nothing(router: RunningRouter) -> None:
    """At whatever byte of its requests it does so."""
    router.decode.behave = hang
    two = ASKED + request(STREAMED)
    for cut in range(0, len(two), 37):
        async with wire(router.url) as client:
            await client.send(two[:cut])
            await asyncio.sleep(0)
    await router.until_idle()
    await router.until(lambda: not router.clients.server_state.connections)
    assert (await router.post("/generate", b"{"))[0] == 400
