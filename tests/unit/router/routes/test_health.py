"""The probes."""

from __future__ import annotations

import json

from tests.unit.router.conftest import Lab, RunningRouter


async def get(router: RunningRouter, path: str) -> tuple[int, dict]:  # type: ignore[type-arg]
    async with router.http.get(router.url + path) as response:
        return response.status, json.loads(await response.read())


async def test_ready_with_a_pair(router: RunningRouter) -> None:
    code, body = await get(router, "/ready")
    assert code == 200
    assert (body["ready"], body["reason"], body["pairs"]) == (True, "", 1)
    assert all(w["ready"] and not w["reason"] for w in body["workers"])


async def test_not_ready_says_why_for_each_worker(lab: Lab) -> None:
    prefill, decode = await lab.engine("prefill", wire_hash="a"), await lab.engine("decode", wire_hash="b")
    router = await lab.router(prefill, decode, ready=False)
    await router.until(lambda: all(w.reachable for w in router.state.workers.workers))
    code, body = await get(router, "/ready")
    assert code == 503
    assert not body["ready"]
    assert body["reason"]
    reasons = {w["url"]: w["reason"] for w in body["workers"]}
    assert "no decode engine has its contract a" in reasons[prefill.url]
    assert "no prefill engine has its contract b" in reasons[decode.url]


async def test_health_is_of_the_process_only(router: RunningRouter) -> None:
    for engine in router.engines:
        await engine.stop()
    await router.until(lambda: not router.state.workers.pairs())
    assert await get(router, "/health") == (200, {"status": "ok"})


async def test_draining_router_is_not_ready(router: RunningRouter) -> None:
    await router.state.lifecycle.drain(seconds=0.1)
    code, body = await get(router, "/ready")
    assert code == 503
    assert "ending" in body["reason"]
    assert (await get(router, "/health"))[0] == 200
