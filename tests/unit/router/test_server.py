"""The router as a process of its own: ports, signals, and an end without cut-off requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from tests.unit.router.conftest import Lab
from tests.unit.router.stub_engine import Seen, StubEngine, chat_events, hang, stream, wait_for_ever

PROGRAM = """
import sys
import typer
from plait.router.command import router
app = typer.Typer(pretty_exceptions_enable=False)
app.command()(router)
app()
"""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def start(*args: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, *args, stdout=PIPE, stderr=PIPE
    )


class Running:
    def __init__(
        self, process: Process, url: str, http: aiohttp.ClientSession, engines: list[StubEngine]
    ) -> None:
        self.process = process
        self.url = url
        self.http = http
        self.prefill, self.decode = engines

    async def ready(self) -> int:
        async with self.http.get(self.url + "/ready") as response:
            return response.status

    async def end(self, *, within: float) -> None:
        began = time.monotonic()
        await asyncio.wait_for(self.process.wait(), within)
        assert self.process.returncode == 0, (await self.process.stderr.read()).decode()  # type: ignore[union-attr]
        assert time.monotonic() - began < within


@pytest.fixture
def drain() -> str:
    """Seconds of the drain; tests of requests that outlive it shorten them."""
    return "60"


@pytest.fixture
async def running(lab: Lab, drain: str) -> AsyncIterator[Running]:
    engines = [await lab.engine("prefill"), await lab.engine("decode")]
    port = free_port()
    targets = ["--prefill", f"{engines[0].url},8998", "--decode", engines[1].url]
    process = await start(*targets, "--port", str(port), "--drain-timeout", drain)
    async with aiohttp.ClientSession() as http:
        made = Running(process, f"http://127.0.0.1:{port}", http, engines)
        try:
            async with asyncio.timeout(60):
                while True:
                    with contextlib.suppress(aiohttp.ClientError):
                        if await made.ready() == 200:
                            break
                    await asyncio.sleep(0.05)
            yield made
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def test_requests_finish_after_sigterm(running: Running) -> None:
    first, *rest = chat_events(["a", "b"])
    go_on = asyncio.Event()

    async def behave(_: StubEngine, request: web.Request, seen: Seen) -> web.StreamResponse:
        response = await stream(request, [first])
        await go_on.wait()
        for event in rest:
            await response.write(event)
        return response

    running.decode.behave = behave
    body = {"messages": [], "stream": True}
    async with running.http.post(running.url + "/v1/chat/completions", json=body) as response:
        assert response.status == 200
        running.process.send_signal(signal.SIGTERM)
        # Not ready, no new requests, but the probes still answer and the old request goes on.
        async with asyncio.timeout(20):
            while await running.ready() != 503:
                await asyncio.sleep(0.01)
        async with running.http.post(running.url + "/v1/chat/completions", json=body) as refused:
            assert refused.status == 503
            assert json.loads(await refused.read())["error"]["code"] == "draining"
        go_on.set()
        assert await response.read() == b"".join([first, *rest])
    await running.end(within=20)
    assert len(running.decode.seen) == 1


@pytest.mark.parametrize("drain", ["0.5"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_requests_that_outlive_the_drain_are_aborted(running: Running, number: signal.Signals) -> None:
    running.prefill.behave, running.decode.behave = hang, wait_for_ever
    task = asyncio.create_task(running.http.post(running.url + "/generate", json={"text": "x"}))
    await asyncio.wait_for(running.decode.arrived.wait(), 20)
    running.process.send_signal(number)
    async with await task as response:
        assert response.status == 503
        assert json.loads(await response.read())["error"]["code"] == "draining"
    await running.end(within=20)
    for engine in (running.prefill, running.decode):
        assert engine.aborts[0][0] == engine.prompts[0]["rid"]


async def test_second_signal_cuts_the_drain_short(running: Running) -> None:
    running.prefill.behave, running.decode.behave = hang, wait_for_ever
    task = asyncio.create_task(running.http.post(running.url + "/generate", json={"text": "x"}))
    await asyncio.wait_for(running.decode.arrived.wait(), 20)
    began = time.monotonic()
    for _ in range(2):
        running.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.1)
    async with await task as response:
        assert response.status == 503
    assert time.monotonic() - began < 10
    await running.end(within=20)


async def test_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = await start("--prefill", "http://p:1,1", "--decode", "http://d:1", "--port", str(port))
        _, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 2
    assert f"port = {port}" in err.decode()
    assert "Traceback" not in err.decode()


async def test_admin_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        args = ["--prefill", "http://p:1,1", "--decode", "http://d:1", "--port", str(free_port())]
        process = await start(*args, "--admin-port", str(port))
        _, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 2
    assert "admin_port" in err.decode()
