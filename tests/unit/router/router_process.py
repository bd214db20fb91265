"""The router as a process of its own, as `plait router` starts it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import psutil
from tests.router.harness.command import router_python
from tests.unit.router.stub_engine import StubEngine

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


async def start(*args: str, env: dict[str, str] | None = None) -> Process:
    return await asyncio.create_subprocess_exec(
        *router_python(), "-c", PROGRAM, *args, stdout=PIPE, stderr=PIPE, env=os.environ | (env or {})
    )


class RouterProcess:
    """A process that serves, and a client. Each request has a connection of its own."""

    def __init__(self, process: Process, port: int, admin_port: int, http: aiohttp.ClientSession) -> None:
        self.process = process
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.admin_url = f"http://127.0.0.1:{admin_port}"
        self.http = http

    async def get(self, url: str) -> tuple[int, bytes]:
        async with self.http.get(url) as response:
            return response.status, await response.read()

    async def post(self, path: str, body: Any) -> tuple[int, bytes]:
        async with self.http.post(self.url + path, json=body) as response:
            return response.status, await response.read()

    async def ready(self, url: str = "") -> int:
        """Status of the probe on the clients' port, or at `url`; 0 while nobody answers."""
        with contextlib.suppress(aiohttp.ClientError):
            return (await self.get((url or self.url) + "/ready"))[0]
        return 0

    async def end(self, *, within: float, code: int = 0) -> None:
        """Wait for its end by itself."""
        began = time.monotonic()
        await asyncio.wait_for(self.process.wait(), within)
        assert self.process.returncode == code, (await self.log())[-3000:]
        assert time.monotonic() - began < within

    async def log(self) -> str:
        """All that it has written, once it has ended."""
        assert self.process.stderr is not None
        return (await self.process.stderr.read()).decode()


@contextlib.asynccontextmanager
async def router_process(
    *args: str, engines: list[StubEngine], admin: bool = False, env: dict[str, str] | None = None
) -> AsyncIterator[RouterProcess]:
    """A router that is ready. It is ended with the block, whatever is under way."""
    port, admin_port = free_port(), free_port() if admin else 0
    given = ["--port", str(port)]
    for engine in engines:
        given += [f"--{engine.role}", engine.url + (",8998" if engine.role == "prefill" else "")]
    if admin:
        given += ["--admin-port", str(admin_port)]
    process = await start(*given, *args, env=env)
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=connector) as http:
        made = RouterProcess(process, port, admin_port, http)
        try:
            async with asyncio.timeout(60):
                # The admin port speaks for all processes.
                while await made.ready(made.admin_url if admin else made.url) != 200:
                    assert process.returncode is None, await made.log()
                    await asyncio.sleep(0.05)
            yield made
        finally:
            if process.returncode is None:
                await _end(process)


async def _end(process: Process) -> None:
    """By itself, which clears up; if it does not end, with all its children."""
    family = psutil.Process(process.pid).children(recursive=True)
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.1)
    try:
        await asyncio.wait_for(process.wait(), 15)
    except TimeoutError:
        process.send_signal(signal.SIGKILL)
        await process.wait()
    for child in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
