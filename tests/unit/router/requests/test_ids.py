"""Request ids: the client's own or a new one, on every answer of a prompt route and in every log line."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.unit.router.asking import CHAT, CHAT_PATH, STREAMED
from tests.unit.router.conftest import Lab, RunningRouter, brief
from tests.unit.router.stub_engine import status, wait_for_ever
from tests.unit.router.wire import request, wire

TYPE = ("content-type: text/plain",)


@pytest.mark.parametrize("body", [CHAT, STREAMED])
async def test_new_id_is_the_engines_too(router: RunningRouter, body: dict[str, object]) -> None:
    seen = set()
    for number in range(3):
        async with router.http.post(router.url + CHAT_PATH, json=body) as response:
            given = response.headers["x-request-id"]
        assert given == router.prefill.prompts[number]["rid"] == router.decode.prompts[number]["rid"]
        seen.add(given)
    assert len(seen) == 3


@pytest.mark.parametrize("body", [CHAT, STREAMED])
async def test_clients_id_comes_back_and_reaches_the_engines_as_a_header(
    router: RunningRouter, body: dict[str, object]
) -> None:
    """As a header only: two clients may choose the same, and an engine aborts by it."""
    for _ in range(2):
        headers = {"x-request-id": "order-66"}
        async with router.http.post(router.url + CHAT_PATH, json=body, headers=headers) as response:
            assert response.headers.getall("x-request-id") == [headers["x-request-id"]]
    for engine in router.engines:
        sent = [{name.lower(): value for name, value in s.headers.items()} for s in engine.seen]
        assert [headers["x-request-id"] for headers in sent] == ["order-66"] * 2
        assert len({s.body["rid"] for s in engine.seen} | {"order-66"}) == 3


@pytest.mark.parametrize("given", ["", " ", "a b", "x" * 129, "\xe9", "a\tb"])
async def test_id_that_is_none(router: RunningRouter, given: str) -> None:
    async with wire(router.url) as client:
        await client.send(request(CHAT, headers=(f"x-request-id: {given}",)))
        got = await client.answer()
    assert (got.status, got.error["param"]) == (400, "x-request-id")
    assert len(got.headers["x-request-id"]) == 32
    assert not router.prefill.seen


REFUSED = {
    "no JSON": (request(b"{"), 400),
    "a field of the router": (request(CHAT | {"rid": "x"}), 400),
    "a header of the router": (request(CHAT, headers=("x-override-rid: 1",)), 400),
    "another method": (request(method="GET"), 405),
    "another type": (request(CHAT, headers=TYPE), 415),
    "an encoding": (request(CHAT, headers=("content-encoding: gzip",)), 415),
    "too large by its length": (request(headers=("content-length: 5000",)), 413),
    "too large": (
        request(headers=("transfer-encoding: chunked",)) + b"1388\r\n" + b"x" * 5000 + b"\r\n0\r\n\r\n",
        413,
    ),
    "late": (request(headers=("content-length: 50",)), 408),
}


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("name", REFUSED)
async def test_refused_request_has_its_id(lab: Lab, name: str, own: bool) -> None:
    router = await lab.router(max_body_bytes=2000, deadlines=brief(body=0.3))
    sent, code = REFUSED[name]
    if own:
        sent = sent.replace(b"host: x\r\n", b"host: x\r\nx-request-id: mine\r\n")
    async with wire(router.url) as client:
        await client.send(sent)
        got = await client.answer()
    assert got.status == code
    assert got.headers["x-request-id"] == "mine" if own else len(got.headers["x-request-id"]) == 32


async def test_request_that_comes_to_the_end_of_the_router_has_its_id(router: RunningRouter) -> None:
    await router.state.lifecycle.drain(seconds=0.05)
    async with router.http.post(
        router.url + CHAT_PATH, json=CHAT, headers={"x-request-id": "mine"}
    ) as response:
        assert (response.status, response.headers["x-request-id"]) == (503, "mine")
        assert response.headers["connection"] == "close"


async def test_log_names_the_request(router: RunningRouter, caplog: pytest.LogCaptureFixture) -> None:
    router.prefill.behave, router.decode.behave = status(500), wait_for_ever
    async with router.http.post(
        router.url + CHAT_PATH, json=CHAT, headers={"x-request-id": "mine"}
    ) as response:
        assert response.status == 502
    lines = [r.getMessage() for r in caplog.records if r.name == "plait.router.requests"]
    assert lines
    assert all(line.startswith("request mine: ") for line in lines)


async def test_abort_names_the_engines_id(router: RunningRouter) -> None:
    router.prefill.behave = router.decode.behave = wait_for_ever
    task = asyncio.create_task(
        router.post(CHAT_PATH, json.dumps(CHAT).encode(), headers={"x-request-id": "m"})
    )
    await router.until(lambda: bool(router.prefill.seen and router.decode.seen))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    for engine in router.engines:
        await router.until(lambda e=engine: bool(e.aborts))  # type: ignore[misc]
        assert engine.aborts[0][0] == engine.prompts[0]["rid"] != "m"
