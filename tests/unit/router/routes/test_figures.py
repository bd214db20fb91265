"""The router API over HTTP: fresh figures, with an end."""

from __future__ import annotations

import json
import time

import pytest
from tests.unit.router.conftest import Lab, RunningRouter, brief


@pytest.mark.parametrize("name", ["groups", "cache", "transfers"])
async def test_figures_are_served_as_json(router: RunningRouter, name: str) -> None:
    async with router.http.get(f"{router.url}/api/v1/{name}") as response:
        assert response.status == 200
        body = json.loads(await response.read())
    entries = body["groups" if name == "groups" else "workers"]
    assert [e["side"] for e in entries] == ["prefill", "decode"]
    assert all(e["reachable"] and e["age_s"] < router.within(0.5) for e in entries)


async def test_figures_are_asked_for_fresh(lab: Lab) -> None:
    router = await lab.router(poll_interval=60.0, status_cache=0.0)
    assert router.prefill.status is not None
    router.prefill.status.ranks[0].pages.free = 1
    async with router.http.get(f"{router.url}/api/v1/cache") as response:
        body = json.loads(await response.read())
    assert body["workers"][0]["ranks"][0]["pages"]["free"] == 1


async def test_an_engine_that_hangs_does_not_hold_the_answer(lab: Lab) -> None:
    router = await lab.router(poll_interval=60.0, status_cache=0.0, deadlines=brief(status=0.5))
    router.decode.status_delay = 60.0
    began = time.monotonic()
    async with router.http.get(f"{router.url}/api/v1/cache") as response:
        body = json.loads(await response.read())
    assert time.monotonic() - began < router.within(1.0)
    prefill, decode = body["workers"]
    assert prefill["reachable"]
    assert not decode["reachable"]
    assert decode["age_s"] > 0.4


async def test_metrics_are_text(router: RunningRouter) -> None:
    async with router.http.get(router.url + "/metrics") as response:
        assert response.status == 200
        assert response.content_type == "text/plain"
        text = await response.text()
    assert (
        f'plait_cache_pages{{rank="1",side="prefill",state="owned",worker="{router.prefill.url}"}} 101.0'
        in text
    )
