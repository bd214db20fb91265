"""The prompt routes: what is refused before any engine hears of it, and what engines get to hear."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.unit.router.asking import outcomes
from tests.unit.router.conftest import Lab, RunningRouter, brief
from tests.unit.router.stub_engine import chat_events, hang, streams

from plait.router.body import Route


@pytest.mark.parametrize("path", list(Route))
@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"{", 400, None),
        (b"[]", 400, None),
        (b"", 400, None),
        (b'{"rid": "x"}', 400, "rid"),
        (b'{"bootstrap_room": 1}', 400, "bootstrap_room"),
        (b'{"text": "' + b"x" * 3000 + b'"}', 413, None),
    ],
)
async def test_refused_without_asking_an_engine(
    lab: Lab, path: Route, body: bytes, code: int, param: str | None
) -> None:
    router = await lab.router(max_body_bytes=2000)
    got, answer = await router.post(path, body)
    assert got == code
    error = json.loads(answer)["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert not router.prefill.seen
    assert not router.decode.seen
    assert outcomes(router, "refused", path) == 1


async def test_no_pair_is_a_503_that_says_where_to_look(lab: Lab) -> None:
    prefill, decode = await lab.engine("prefill"), await lab.engine("decode", wire_hash="other")
    router = await lab.router(prefill, decode, ready=False)
    await router.until(lambda: all(w.reachable for w in router.state.workers.workers))
    async with router.http.post(router.url + "/generate", json={"text": "x"}) as response:
        assert response.status == 503
        assert response.headers["retry-after"]
        error = json.loads(await response.read())["error"]
    assert (error["code"], error["type"]) == ("no_pair", "server_error")
    assert "/ready" in error["message"]
    assert not prefill.seen


async def test_headers_and_key_travel(lab: Lab) -> None:
    router = await lab.router(engine_api_key="engine")
    sent = {"x-smg-routing-key": "k", "authorization": "Bearer client", "x-override-priority": "3"}
    async with router.http.post(router.url + "/generate", json={"text": "x"}, headers=sent) as response:
        assert response.status == 200
        assert response.headers["x-request-id"] == router.decode.prompts[0]["rid"]
        assert response.content_type == "application/json"
    for engine in router.engines:
        (seen,) = engine.seen
        headers = {name.lower(): value for name, value in seen.headers.items()}
        assert headers["authorization"] == "Bearer engine"
        assert headers["x-smg-routing-key"] == "k"
        assert headers["x-override-priority"] == "3"
        assert headers["accept-encoding"] == "identity"


async def test_pairing_by_header_is_refused(router: RunningRouter) -> None:
    headers = {"x-override-bootstrap-room": "1"}
    code, body = await router.post("/generate", {"text": "x"}, headers=headers)
    assert code == 400
    assert json.loads(body)["error"]["param"] == "x-override-bootstrap-room"


async def test_every_request_has_its_own_room_and_id(router: RunningRouter) -> None:
    for _ in range(5):
        await asyncio.gather(*(router.post("/generate", {"text": "x"}) for _ in range(40)))
    rooms = {p["bootstrap_room"] for p in router.prefill.prompts}
    rids = {p["rid"] for p in router.prefill.prompts}
    assert len(rooms) == len(rids) == len(router.prefill.prompts) == 200
    assert {(p["rid"], p["bootstrap_room"]) for p in router.decode.prompts} == {
        (p["rid"], p["bootstrap_room"]) for p in router.prefill.prompts
    }


async def test_large_prompt_arrives_whole_on_both_sides(router: RunningRouter) -> None:
    text = "0123456789abcdef" * (1 << 19)  # 8 MiB
    code, _ = await router.post("/generate", {"text": text})
    assert code == 200
    assert router.prefill.prompts[0]["text"] == router.decode.prompts[0]["text"] == text


async def test_draining_router_takes_no_request(router: RunningRouter) -> None:
    await router.state.lifecycle.drain(seconds=0.1)
    code, body = await router.post("/generate", {"text": "x"})
    assert code == 503
    assert json.loads(body)["error"]["code"] == "draining"
    assert not router.prefill.seen


async def test_slow_body_has_a_deadline(lab: Lab) -> None:
    router = await lab.router(deadlines=brief(body=0.5))
    host, port = router.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    assert head.startswith(b"HTTP/1.1 408")
    writer.close()


async def test_fault_of_the_router_is_answered_and_ends_both_legs(
    router: RunningRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    router.prefill.behave = hang
    router.decode.behave = streams(chat_events(["a"])[:2], then="stall")
    monkeypatch.setattr("plait.router.exchange.to_client", lambda headers: 1 / 0)
    code, body = await router.post("/generate", {"text": "x", "stream": True})
    assert code == 500
    assert json.loads(body)["error"]["code"] == "router_fault"
    await router.until(lambda: bool(router.prefill.aborts and router.decode.aborts))
    await router.until_idle()
