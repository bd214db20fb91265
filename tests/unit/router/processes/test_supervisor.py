"""Several processes of one router, as they are started: whoever dies is replaced, and all of them end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families
from tests.unit.router.asking import CHAT, CHAT_PATH, STREAMED
from tests.unit.router.conftest import Lab
from tests.unit.router.router_process import RouterProcess, router_process
from tests.unit.router.stub_engine import Seen, StubEngine, chat_events, hang, stream

WORKERS = "/api/v1/workers"


@pytest.fixture
def folder() -> Iterator[Path]:
    """For temporary files; not pytest's, whose long path no Unix socket could have."""
    made = Path(tempfile.mkdtemp(prefix="plait-"))
    yield made
    shutil.rmtree(made)


class Several:
    """A router of an admin process and two that serve, before one prefill and two decode engines."""

    def __init__(self, router: RouterProcess, engines: list[StubEngine]) -> None:
        self.router = router
        self.prefill, self.decode, self.other = engines
        self.top = psutil.Process(router.process.pid)

    async def call(self, method: str, path: str = "", **how: Any) -> dict[str, Any]:
        async with self.router.http.request(
            method, self.router.admin_url + WORKERS + path, **how
        ) as response:
            body = await response.read()
            assert response.status in (200, 201), body
            return dict(json.loads(body))

    async def serving(self) -> set[int]:
        return set((await self.call("GET"))["processes"])

    async def admin(self) -> int:
        [pid] = {child.pid for child in self.top.children()} - await self.serving()
        return pid

    async def ask(self, times: int) -> list[int]:
        """Each on a connection of its own: the kernel spreads them over the processes."""
        codes = await asyncio.gather(*(self.router.post(CHAT_PATH, CHAT) for _ in range(times)))
        return [code for code, _ in codes]

    async def scrape(self) -> dict[str, float]:
        """Samples by name, those of one name added up."""
        _, text = await self.router.get(self.router.admin_url + "/metrics")
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(text.decode()):
            for sample in family.samples:
                found[sample.name] = found.get(sample.name, 0) + sample.value
        return found

    @contextlib.asynccontextmanager
    async def held(self, count: int) -> AsyncIterator[None]:
        """So many requests under way on the decode engines, for as long as the block runs."""
        decodes = (self.decode, self.other)
        before, behaved = sum(len(e.seen) for e in decodes), [e.behave for e in decodes]
        self.decode.behave = self.other.behave = hang
        tasks = [asyncio.create_task(self.router.post(CHAT_PATH, CHAT)) for _ in range(count)]
        await until(lambda: sum(len(e.seen) for e in decodes) == before + count)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for engine, behave in zip(decodes, behaved, strict=True):
                engine.behave = behave

    def spread(self) -> dict[int, int]:
        """Connections to decode engines, by process."""
        ports = {int(e.url.rsplit(":", 1)[1]) for e in (self.decode, self.other)}
        return {
            child.pid: sum(c.raddr.port in ports for c in child.net_connections("tcp") if c.raddr)
            for child in self.top.children()
        }


async def until(condition: Callable[[], Any], *, seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while True:
            found = condition()
            if await found if asyncio.iscoroutine(found) else found:
                return
            await asyncio.sleep(0.05)


def alive(pid: int) -> bool:
    """Running, and no zombie. It may go between the two looks."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
async def several(lab: Lab, folder: Path) -> AsyncIterator[Several]:
    engines = [await lab.engine(side) for side in ("prefill", "decode", "decode")]
    args = ["--processes", "2", "--drain-timeout", "20", "--decode-policy", "round-robin"]
    how = {"engines": engines, "admin": True, "env": {"TMPDIR": str(folder)}}
    async with router_process(*args, **how) as router:  # type: ignore[arg-type]
        yield Several(router, engines)
    # Also where the test has failed: nobody is left who would keep the port.
    await until(lambda: not list(folder.iterdir()))


async def test_one_view_of_all(several: Several) -> None:
    """Both serve, their figures are added up, and a drain by the admin API is in force in both."""
    pids = await several.serving()
    assert len(pids) == 2
    assert await several.ask(40) == [200] * 40
    scrape = await several.scrape()
    assert scrape["plait_router_requests_total"] == 40
    assert scrape["plait_router_first_byte_seconds_count"] == 40
    assert scrape["plait_router_processes"] == 2
    # Legs under way, of all.
    async with several.held(24):
        listed = {w["url"]: w["in_flight"] for w in (await several.call("GET"))["workers"]}
        assert listed[several.decode.url] + listed[several.other.url] == 24
        assert (await several.scrape())["plait_router_in_flight"] == 24
        both_serve(several, pids)
    # Of a drain the answer says that it is in force.
    await several.call("POST", "/drain", params={"url": several.decode.url})
    before = len(several.decode.seen)
    assert await several.ask(40) == [200] * 40
    assert len(several.decode.seen) == before
    await several.call("POST", "/undrain", params={"url": several.decode.url})
    await several.ask(20)
    assert len(several.decode.seen) > before


async def test_serving_process_that_is_killed_is_replaced(several: Several) -> None:
    pids = await several.serving()
    assert await several.ask(20) == [200] * 20
    assert (await several.scrape())["plait_router_requests_total"] == 20
    victim = min(pids)
    os.kill(victim, signal.SIGKILL)
    # What it had counted stays counted, also while nobody has its place yet.
    await until(lambda: not alive(victim))
    assert (await several.scrape())["plait_router_requests_total"] == 20

    async def replaced() -> bool:
        now = await several.serving()
        return len(now) == 2 and victim not in now

    await until(replaced)
    now = await several.serving()
    assert max(pids) in now
    await until(lambda: ready(several))
    assert await several.ask(20) == [200] * 20
    assert (await several.scrape())["plait_router_requests_total"] == 40

    async with several.held(24):
        both_serve(several, now)


def both_serve(several: Several, pids: set[int]) -> None:
    """With two dozen requests under way: to each decode engine there is one connection for health checks."""
    spread = several.spread()
    assert all(spread[pid] > 2 for pid in pids), spread


async def ready(several: Several) -> bool:
    return await several.router.ready(several.router.admin_url) == 200


async def test_admin_process_that_is_killed_is_replaced_and_the_list_lives_on(
    several: Several, lab: Lab
) -> None:
    added = await lab.engine("decode")
    await several.call("POST", json={"side": "decode", "url": added.url})
    await several.call("DELETE", params={"url": several.decode.url})
    await several.call("POST", "/drain", params={"url": several.other.url})
    await until(lambda: ready(several))
    serving, admin = await several.serving(), await several.admin()
    os.kill(admin, signal.SIGKILL)
    # Clients do not notice, before and after.
    assert await several.ask(10) == [200] * 10
    await until(lambda: ready(several))
    assert await several.admin() != admin
    assert await several.serving() == serving
    listed = {w["url"]: (w["source"], w["draining"]) for w in (await several.call("GET"))["workers"]}
    assert listed == {
        several.prefill.url: ("source", False),
        several.other.url: ("source", True),
        added.url: ("admin", False),
    }
    assert await several.ask(20) == [200] * 20
    assert (len(several.decode.seen), len(several.other.seen), len(added.seen)) == (0, 0, 30)
    # And it is followed: what it is told now is in force in all.
    await several.call("DELETE", params={"url": added.url})
    await several.call("POST", "/undrain", params={"url": several.other.url})
    assert await several.ask(20) == [200] * 20
    assert (len(several.other.seen), len(added.seen)) == (20, 30)


async def test_sigterm_drains(several: Several, folder: Path) -> None:
    first, *rest = chat_events(["a", "b"])
    go_on = asyncio.Event()

    async def behave(_: StubEngine, request: web.Request, seen: Seen) -> web.StreamResponse:
        response = await stream(request, [first])
        await go_on.wait()
        for event in rest:
            await response.write(event)
        return response

    several.decode.behave = several.other.behave = behave
    tasks = [asyncio.create_task(several.router.post(CHAT_PATH, STREAMED)) for _ in range(8)]
    await until(lambda: len(several.decode.seen) + len(several.other.seen) == 8)
    family = [several.top, *several.top.children()]
    several.router.process.send_signal(signal.SIGTERM)
    # The admin process answers until the others have ended, and says that it is over.
    await until(lambda: not_ready(several))
    assert (await several.scrape())["plait_router_in_flight"] == 8
    assert not any(task.done() for task in tasks)
    go_on.set()
    assert await asyncio.gather(*tasks) == [(200, b"".join([first, *rest]))] * 8
    await several.router.end(within=20)
    assert not any(each.is_running() for each in family)
    assert not list(folder.iterdir())
    assert "Traceback" not in await several.router.log()


async def not_ready(several: Several) -> bool:
    return await several.router.ready(several.router.admin_url) == 503


async def test_supervisor_that_is_killed_leaves_nothing_behind(several: Several, folder: Path) -> None:
    family = several.top.children()
    assert len(family) == 3
    assert list(folder.iterdir())
    began = time.monotonic()
    several.router.process.send_signal(signal.SIGKILL)
    await several.router.process.wait()
    await until(lambda: not any(each.is_running() for each in family))
    assert time.monotonic() - began < 10
    await until(lambda: not list(folder.iterdir()))
    assert await several.router.ready() == 0
