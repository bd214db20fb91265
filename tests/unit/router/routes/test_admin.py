"""The admin API: workers listed, added, drained and removed while requests run, and wrong wishes refused."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.unit.router.asking import CHAT, CHAT_PATH, STREAMED, error_of
from tests.unit.router.conftest import Lab, RunningRouter
from tests.unit.router.stub_engine import chat_events, hang, streams, wait_for_ever

WORKERS = "/api/v1/workers"


async def call(
    router: RunningRouter, method: str, path: str = "", *, json: Any = None, **more: Any
) -> tuple[int, bytes]:
    async with router.http.request(method, router.admin_url + WORKERS + path, json=json, **more) as response:
        return response.status, await response.read()


def listed(body: bytes) -> dict[str, dict[str, Any]]:
    """By address."""
    return {w["url"]: w for w in json.loads(body)["workers"]}


async def test_list(router: RunningRouter) -> None:
    code, body = await call(router, "GET")
    assert code == 200
    assert listed(body) == {
        engine.url: {
            "url": engine.url,
            "side": engine.role,
            "source": "source",
            "ready": True,
            "trouble": "",
            "draining": False,
            "in_flight": 0,
        }
        for engine in router.engines
    }
    assert len(json.loads(body)["processes"]) == 1


async def test_added_workers_serve_and_removed_ones_do_not(router: RunningRouter, lab: Lab) -> None:
    prefill, decode = await lab.engine("prefill"), await lab.engine("decode")
    code, body = await call(router, "POST", json={"side": "decode", "url": decode.url + "/"})
    assert code == 201
    assert listed(body)[decode.url]["source"] == "admin"
    wanted = {"side": "prefill", "url": prefill.url, "bootstrap_port": 9000, "bootstrap_host": "10.0.0.9"}
    assert (await call(router, "POST", json=wanted))[0] == 201
    await router.until(lambda: len(router.state.workers.pairs()) == 4)
    for engine in router.engines:
        code, body = await call(router, "DELETE", params={"url": engine.url})
        assert code == 200
        assert engine.url not in listed(body)
    assert (await router.post(CHAT_PATH, CHAT))[0] == 200
    assert [len(e.seen) for e in (*router.engines, prefill, decode)] == [0, 0, 1, 1]
    sent = decode.prompts[0]
    assert (sent["bootstrap_host"], sent["bootstrap_port"]) == ("10.0.0.9", 9000)
    # A worker that is gone is asked for nothing any more.
    await call(router, "DELETE", params={"url": decode.url})
    code, body = await router.post(CHAT_PATH, CHAT)
    assert (code, error_of(body)["code"]) == (503, "no_pair")


@pytest.mark.parametrize("change", ["drain", "remove"])
async def test_what_is_under_way_is_finished(router: RunningRouter, lab: Lab, change: str) -> None:
    go_on = asyncio.Event()
    events = chat_events(["a", "b"])

    async def slow(engine, request, seen):  # type: ignore[no-untyped-def]
        await go_on.wait()
        return await streams(events)(engine, request, seen)

    other = await lab.engine("decode")
    router.decode.behave = slow
    task = asyncio.create_task(router.post(CHAT_PATH, STREAMED))
    await router.until(lambda: bool(router.decode.seen))
    await call(router, "POST", json={"side": "decode", "url": other.url})
    await router.until(lambda: len(router.state.workers.pairs()) == 2)
    where = {"url": router.decode.url}
    if change == "drain":
        code, body = await call(router, "POST", "/drain", params=where)
        worker = listed(body)[router.decode.url]
        assert (worker["draining"], worker["ready"], worker["in_flight"]) == (True, False, 1)
        assert "draining" in worker["trouble"]
    else:
        code, body = await call(router, "DELETE", params=where)
        assert router.decode.url not in listed(body)
    assert code == 200
    for _ in range(3):
        assert (await router.post(CHAT_PATH, CHAT))[0] == 200
    assert (len(router.decode.seen), len(other.seen)) == (1, 3)
    assert not task.done()
    go_on.set()
    assert await task == (200, b"".join(events))
    await router.until_idle()
    assert not router.decode.aborts
    assert router.state.workers.leaving == []


async def test_drained_worker_serves_again(router: RunningRouter) -> None:
    where = {"url": router.prefill.url}
    await call(router, "POST", "/drain", params=where)
    assert (await router.post(CHAT_PATH, CHAT))[0] == 503
    async with router.http.get(router.url + "/ready") as response:
        assert response.status == 503
        assert "draining" in await response.text()
    code, body = await call(router, "POST", "/undrain", params=where)
    assert code == 200
    assert listed(body)[router.prefill.url]["ready"]
    assert (await router.post(CHAT_PATH, CHAT))[0] == 200


async def test_removed_worker_may_come_back(router: RunningRouter) -> None:
    await call(router, "DELETE", params={"url": router.decode.url})
    await call(router, "POST", json={"side": "decode", "url": router.decode.url})
    await router.until(lambda: bool(router.state.workers.pairs()))
    assert (await router.post(CHAT_PATH, CHAT))[0] == 200


async def test_client_that_waits_on_a_removed_worker_is_answered(router: RunningRouter) -> None:
    """Its legs are no more, but it is: removal is no abort."""
    router.decode.behave = wait_for_ever
    task = asyncio.create_task(router.post(CHAT_PATH, CHAT))
    await router.until(lambda: bool(router.decode.seen))
    await call(router, "DELETE", params={"url": router.decode.url})
    await asyncio.sleep(0.05)
    assert not task.done()
    router.decode.aborted.set()
    assert (await task)[0] == 502


async def test_engine_of_a_removed_worker_is_told_to_abort(router: RunningRouter) -> None:
    """Also where its last client leaves just after it was removed."""
    router.prefill.behave = router.decode.behave = hang
    task = asyncio.create_task(router.post(CHAT_PATH, CHAT))
    await router.until(lambda: bool(router.prefill.seen and router.decode.seen))
    for engine in router.engines:
        await call(router, "DELETE", params={"url": engine.url})
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    for engine in router.engines:
        await router.until(lambda e=engine: bool(e.aborts), seconds=2.0)  # type: ignore[misc]
        assert engine.aborts[0][0] == engine.prompts[0]["rid"]
    assert router.state.workers.leaving == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"side": "decode"}, "url"),
        ({"side": "both", "url": "http://x:1"}, "side"),
        ({"side": "decode", "url": "x:1"}, "url"),
        ({"side": "decode", "url": "http://x:1/v1"}, "url"),
        ({"side": "decode", "url": "http://me:secret@x:1"}, "url"),
        ({"side": "decode", "url": "http://x:1", "bootstrap_port": 1}, "bootstrap_port"),
        ({"side": "decode", "url": "http://x:1", "bootstrap_host": "y"}, "bootstrap_port"),
        ({"side": "prefill", "url": "http://x:1"}, "bootstrap_port"),
        ({"side": "prefill", "url": "http://x:1", "bootstrap_port": 0}, None),
        ({"side": "prefill", "url": "http://x:1", "bootstrap_port": 70_000}, None),
        ({"side": "prefill", "url": "http://x:1", "bootstrap_port": "many"}, "bootstrap_port"),
        ({"side": "prefill", "url": "http://x:1", "bootstrap_port": 1, "bootstrap_host": "a b"}, None),
        ({"side": "decode", "url": "http://x:1", "weight": 3}, "weight"),
        ([], None),
    ],
)
async def test_worker_that_is_none(router: RunningRouter, body: Any, param: str | None) -> None:
    code, answer = await call(router, "POST", json=body)
    assert code == 400
    error = error_of(answer)
    assert error["type"] == "invalid_request_error"
    if param is not None:
        assert param in str(error["param"])
    assert b"secret" not in answer
    assert len(router.state.workers.workers) == 2


async def test_address_of_another_worker_is_a_conflict(router: RunningRouter) -> None:
    code, body = await call(router, "POST", json={"side": "decode", "url": router.prefill.url})
    assert code == 409
    assert error_of(body)["code"] == "worker_exists"


@pytest.mark.parametrize(("method", "path"), [("DELETE", ""), ("POST", "/drain"), ("POST", "/undrain")])
@pytest.mark.parametrize(("url", "code"), [("http://x:1", 404), ("x", 400), (None, 400)])
async def test_worker_that_nobody_knows(
    router: RunningRouter, method: str, path: str, url: str | None, code: int
) -> None:
    got, body = await call(router, method, path, params={} if url is None else {"url": url})
    assert got == code
    error = error_of(body)
    assert error["param"] == "url"
    if code == 404:
        assert router.prefill.url in error["message"]


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}, {"authorization": "secret"}])
async def test_admin_key_is_asked_for(lab: Lab, headers: dict[str, str]) -> None:
    router = await lab.router(admin_api_key="secret", admin_port=65_000)
    wishes = [("GET", ""), ("POST", ""), ("DELETE", "?url=x"), ("POST", "/drain?url=x"), ("POST", "/undrain")]
    for method, path in wishes:
        code, body = await call(router, method, path, headers=headers)
        assert code == 401, (method, path)
        assert error_of(body)["code"] == "invalid_api_key"
    right = {"authorization": "Bearer secret"}
    assert (await call(router, "GET", headers=right))[0] == 200
    # Figures and probes are for whoever reaches the admin port.
    for path in ("/metrics", "/ready", "/api/v1/groups"):
        async with router.http.get(router.admin_url + path) as response:
            assert response.status == 200


async def test_process_that_does_not_follow_is_told(
    router: RunningRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def settle() -> list[int]:
        return [7, 8]

    monkeypatch.setattr(router.board, "_settle", settle)
    code, body = await call(router, "POST", "/drain", params={"url": router.decode.url})
    assert code == 503
    error = error_of(body)
    assert error["code"] == "not_settled"
    assert "[7, 8]" in error["message"]
    # It is in force in the others all the same.
    assert router.state.workers.pick(None) is None


async def test_admin_api_is_on_the_admin_port_only(router: RunningRouter) -> None:
    async with router.http.get(router.url + WORKERS) as response:
        assert response.status == 404
