"""The router as a process of its own: ports, signals, and an end without cut-off requests."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import time
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from tests.unit.router.asking import CHAT_PATH, STREAMED
from tests.unit.router.conftest import Lab
from tests.unit.router.router_process import RouterProcess, free_port, router_process, start
from tests.unit.router.stub_engine import Seen, StubEngine, chat_events, hang, stream, wait_for_ever

from plait.router.config import ConfigError, PrefillTarget, RouterConfig
from plait.router.server import listen


class Running(RouterProcess):
    prefill: StubEngine
    decode: StubEngine


@pytest.fixture
def drain() -> str:
    """Seconds of the drain; tests of requests that outlive it shorten them."""
    return "60"


@pytest.fixture
async def running(lab: Lab, drain: str) -> AsyncIterator[Running]:
    engines = [await lab.engine("prefill"), await lab.engine("decode")]
    async with router_process("--drain-timeout", drain, engines=engines) as made:
        made.__class__ = Running
        assert isinstance(made, Running)
        made.prefill, made.decode = engines
        yield made


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
    async with running.http.post(running.url + CHAT_PATH, json=STREAMED) as response:
        assert response.status == 200
        running.process.send_signal(signal.SIGTERM)
        # Not ready, no new requests, but the probes still answer and the old request goes on.
        async with asyncio.timeout(20):
            while await running.ready() != 503:
                await asyncio.sleep(0.01)
        async with running.http.post(running.url + CHAT_PATH, json=STREAMED) as refused:
            assert refused.status == 503
            assert refused.headers["connection"] == "close"
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


@pytest.mark.parametrize("name", ["port", "admin_port", "port of several processes"])
async def test_port_that_is_taken_is_named(name: str) -> None:
    with socket.socket() as taken:
        # As another router of several processes has it, which would share.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port, other = taken.getsockname()[1], free_port()
        args = {
            "port": ["--port", str(port)],
            "admin_port": ["--port", str(other), "--admin-port", str(port)],
            "port of several processes": [
                "--port",
                str(port),
                "--admin-port",
                str(other),
                "--processes",
                "2",
            ],
        }[name]
        process = await start("--prefill", "http://p:1,1", "--decode", "http://d:1", *args)
        _, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 2
    assert f"{name.split()[0]} = {port}" in err.decode()
    assert "Traceback" not in err.decode()


def test_listener_is_as_clients_need_it() -> None:
    config = RouterConfig(prefill=[PrefillTarget("http://p:1", 1)], decode=["http://d:1"])
    with listen(config, "port", "127.0.0.1", 0) as sock:
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 120_000
        assert not sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT)
        assert not sock.get_inheritable()
        sock.listen()
        with pytest.raises(ConfigError, match="admin_port = "):
            listen(config, "admin_port", *sock.getsockname())
    with listen(config, "port", "127.0.0.1", 0, shared=True) as one:
        listen(config, "port", *one.getsockname(), shared=True).close()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "203.0.113.1"])
def test_host_that_is_not_ours_is_named(host: str) -> None:
    config = RouterConfig(prefill=[PrefillTarget("http://p:1", 1)], decode=["http://d:1"])
    with pytest.raises(ConfigError, match=host):
        listen(config, "port", host, 0)
