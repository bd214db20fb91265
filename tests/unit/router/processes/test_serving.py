"""A process that serves clients: nothing before it has its list, all after it, whatever admin's becomes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.unit.router.asking import CHAT, CHAT_PATH
from tests.unit.router.conftest import CALM, Lab

from plait.router import server
from plait.router.config import PrefillTarget, RouterConfig
from plait.router.directory import Desired
from plait.router.discovery.target import Target
from plait.router.processes.channel import Hub
from plait.router.processes.serving import ChannelSource, _serve
from plait.router.server import listen


class Serving:
    """One such process, as a task, and the hub that it follows."""

    def __init__(self, url: str, hub: Hub, http: aiohttp.ClientSession) -> None:
        self.url = url
        self.hub = hub
        self._http = http

    async def get(self, path: str) -> tuple[int, Any]:
        async with self._http.get(self.url + path) as response:
            return response.status, json.loads(await response.read())

    async def ask(self) -> int:
        async with self._http.post(self.url + CHAT_PATH, json=CHAT) as response:
            await response.read()
            return response.status

    async def until_ready(self, status: int) -> Any:
        async with asyncio.timeout(10):
            while (found := await self.get("/ready"))[0] != status:
                await asyncio.sleep(0.02)
            return found[1]


@pytest.fixture
async def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Serving]:
    # The garbage collector is the test run's.
    monkeypatch.setattr(server, "settle_heap", lambda: None)
    given = {"prefill": [PrefillTarget("http://127.0.0.1:1", 1)], "decode": ["http://127.0.0.1:2"]}
    config = RouterConfig(**given, port=0, deadlines=CALM, poll_interval=0.1)  # type: ignore[arg-type]
    sock = listen(config, "port", config.host, 0)
    control = str(tmp_path / "control.sock")
    hub = Hub()
    await hub.open(control)
    task = asyncio.create_task(_serve(config, sock, control))
    try:
        async with aiohttp.ClientSession() as http:
            yield Serving("http://{}:{}".format(*sock.getsockname()), hub, http)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(task, 10)
    finally:
        task.cancel()
        await hub.close()


async def test_nothing_is_served_before_the_list_is_there(serving: Serving, lab: Lab) -> None:
    found = await serving.until_ready(503)
    assert "the list of workers is not known yet" in found["reason"]
    # Not even what the flags name: the admin process may know better.
    assert found["workers"] == []
    assert await serving.ask() == 503
    assert (await serving.get("/health"))[0] == 200
    engines = [await lab.engine("prefill"), await lab.engine("decode")]
    targets = (Target.prefill(engines[0].url, bootstrap_port=8998), Target.decode(engines[1].url))
    serving.hub.tell(Desired(targets))
    assert await serving.hub.settle() == []
    await serving.until_ready(200)
    assert await serving.ask() == 200
    [report] = await serving.hub.ask()
    assert (report.pid, report.pairs) == (os.getpid(), 1)
    serving.hub.tell(Desired(targets, (engines[1].url,)))
    assert await serving.hub.settle() == []
    assert await serving.ask() == 503
    serving.hub.tell(Desired(targets))
    assert await serving.hub.settle() == []
    # The admin process dies: what it said last stays in force.
    await serving.hub.close()
    await asyncio.sleep(0.1)
    assert await serving.ask() == 200


async def test_its_source_is_the_admin_process() -> None:
    source = ChannelSource()
    assert (source.kind, source.synced, source.problem, source.age) == ("admin process", False, "", None)
    await source.watch(lambda targets: pytest.fail("lists come by the channel"))
