"""The process of the admin port: it tells the others, and shows them as one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.unit.router.conftest import CALM, Lab
from tests.unit.router.stub_engine import StubEngine

from plait.router import server
from plait.router.config import PrefillTarget, RouterConfig
from plait.router.directory import Desired, Known
from plait.router.discovery.target import Target
from plait.router.processes import channel, record
from plait.router.processes.admin import _serve
from plait.router.processes.channel import follow
from plait.router.report import Report
from plait.router.server import listen


class Admin:
    """Admin processes, as tasks, one after the other, and what serves clients beside them."""

    def __init__(self, folder: Path, engines: list[StubEngine], http: aiohttp.ClientSession) -> None:
        self.folder = folder
        self.prefill, self.decode = engines
        self.applied: list[Desired] = []
        self.pairs = 1
        self._http = http
        self._url = ""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        given = {"prefill": [PrefillTarget(self.prefill.url, 8998)], "decode": [self.decode.url]}
        more = {"port": 1, "processes": 2, "deadlines": CALM, "poll_interval": 0.1, "admin_port": 2}
        config = RouterConfig(**given, **more)  # type: ignore[arg-type]
        sock = listen(config, "admin_port", config.host, 0)
        self._url = "http://{}:{}".format(*sock.getsockname())
        self._task = asyncio.create_task(_serve(config, sock, str(self.folder / "control.sock")))
        async with asyncio.timeout(10):
            while True:
                with contextlib.suppress(aiohttp.ClientConnectorError):
                    await self.call("GET", "/health")
                    return
                await asyncio.sleep(0.02)

    async def end(self) -> None:
        assert self._task is not None
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(self._task, 10)

    def serve(self, pid: int) -> asyncio.Task[None]:
        """A serving process."""

        def report() -> Report:
            return Report(pid=pid, in_flight=pid, queued=0, pairs=self.pairs)

        path = str(self.folder / "control.sock")
        return asyncio.create_task(follow(path, pid=pid, apply=self.applied.append, report=report))

    async def call(self, method: str, path: str, **how: Any) -> tuple[int, Any]:
        async with self._http.request(method, self._url + path, **how) as response:
            return response.status, json.loads(await response.read())

    async def until_ready(self, status: int) -> Any:
        async with asyncio.timeout(10):
            while True:
                found = await self.call("GET", "/ready")
                if found[0] == status:
                    return found[1]
                await asyncio.sleep(0.02)


@pytest.fixture
async def admin(tmp_path: Path, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Admin]:
    # The garbage collector is the test run's.
    monkeypatch.setattr(server, "settle_heap", lambda: None)
    monkeypatch.setattr(channel, "_REPORT_SECONDS", 0.1)
    monkeypatch.setattr(channel, "_RECONNECT_SECONDS", 0.02)
    engines = [await lab.engine("prefill"), await lab.engine("decode")]
    async with aiohttp.ClientSession() as http:
        yield Admin(tmp_path, engines, http)


async def test_it_speaks_for_all(admin: Admin) -> None:
    await admin.start()
    found = await admin.until_ready(503)
    assert found["ready"] is False
    serving = [admin.serve(pid) for pid in (7, 8)]
    await admin.until_ready(200)
    code, body = await admin.call("GET", "/api/v1/workers")
    assert (code, body["processes"]) == (200, [7, 8])
    # No request should come while one of them has no pair.
    admin.pairs = 0
    assert "2 of the router's processes" in (await admin.until_ready(503))["reason"]
    admin.pairs = 1
    await admin.until_ready(200)
    code, _ = await admin.call("POST", "/api/v1/workers/drain", params={"url": admin.decode.url})
    assert code == 200
    assert [d.withdrawn for d in admin.applied[-2:]] == [(admin.decode.url,)] * 2
    for task in serving:
        task.cancel()
    await admin.end()


async def test_next_one_goes_on_with_the_list_and_the_changes(admin: Admin) -> None:
    await admin.start()
    serving = admin.serve(7)
    code, _ = await admin.call(
        "POST", "/api/v1/workers", json={"side": "decode", "url": "http://127.0.0.1:9"}
    )
    assert code == 201
    assert (await admin.call("DELETE", "/api/v1/workers", params={"url": admin.decode.url}))[0] == 200
    last = admin.applied[-1]
    await admin.end()
    before = len(admin.applied)
    await admin.start()
    async with asyncio.timeout(10):
        while len(admin.applied) == before:
            await asyncio.sleep(0.02)
    assert admin.applied[before:] == [last] * (len(admin.applied) - before)
    assert [t.url for t in last.targets] == [admin.prefill.url, "http://127.0.0.1:9"]
    serving.cancel()
    await admin.end()


async def test_last_known_list_is_told_before_the_source_has_spoken(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a worker that the admin API adds just then would be the only one."""

    class Silent:
        kind, synced, problem, age = "kubernetes", False, "", None

        async def watch(self, take: Any) -> None:
            await asyncio.get_running_loop().create_future()

    monkeypatch.setattr("plait.router.processes.admin.source_of", lambda config: Silent())
    known = (Target.prefill(admin.prefill.url, bootstrap_port=8998), Target.decode(admin.decode.url))
    record.save(str(admin.folder / "workers.json"), Known(found=known))
    await admin.start()
    serving = admin.serve(7)
    async with asyncio.timeout(10):
        while not admin.applied:
            await asyncio.sleep(0.02)
    assert admin.applied == [Desired(known)]
    await admin.call("POST", "/api/v1/workers", json={"side": "decode", "url": "http://127.0.0.1:9"})
    assert [t.url for t in admin.applied[-1].targets] == [t.url for t in known] + ["http://127.0.0.1:9"]
    serving.cancel()
    await admin.end()
