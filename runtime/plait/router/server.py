"""The router as a process: sockets, signals, and an end that lets requests finish."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Iterator

import uvicorn
import uvloop
from starlette.types import ASGIApp

from plait.router.app import admin_app, client_app
from plait.router.config import ConfigError, RouterConfig
from plait.router.state import RouterState, open_state

log = logging.getLogger("plait.router.server")

# Clients keep connections open for longer than uvicorn's 5 s.
_KEEP_ALIVE = 75
_BACKLOG = 2048


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: the router drains before it lets uvicorn end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run(config: RouterConfig) -> None:
    """Serve until SIGTERM or SIGINT, drain, return. Raises ConfigError where a port cannot be had."""
    sockets = [_listen(config, "port", config.port)]
    if config.admin_port:
        sockets.append(_listen(config, "admin_port", config.admin_port))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, sockets))


async def _serve(config: RouterConfig, sockets: list[socket.socket]) -> None:
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    async with open_state(config) as state:
        apps: list[ASGIApp] = [client_app(state)]
        if config.admin_port:
            apps.append(admin_app(state))
        servers = [_Server(_settings(app)) for app in apps]
        running = [
            asyncio.create_task(server.serve(sockets=[sock]))
            for server, sock in zip(servers, sockets, strict=True)
        ]
        for sock in sockets:
            log.info("listening on %s:%d", *sock.getsockname()[:2])
        told = asyncio.create_task(ending.wait())
        await asyncio.wait({told, *running}, return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        await _drain(state, ending)
        for server in servers:
            server.should_exit = True
        await asyncio.gather(*running)


async def _drain(state: RouterState, ending: asyncio.Event) -> None:
    """Let requests finish; a second signal cuts that short."""
    seconds = state.config.deadlines.drain
    log.info("ending: %d requests under way get %g s", state.lifecycle.in_flight, seconds)
    ending.clear()
    drain = asyncio.create_task(state.lifecycle.drain(seconds=seconds))
    again = asyncio.create_task(ending.wait())
    await asyncio.wait({drain, again}, return_when=asyncio.FIRST_COMPLETED)
    if not drain.done():
        log.warning("ending now: told twice")
        drain.cancel()
        await state.lifecycle.drain(seconds=0.001)
    again.cancel()


def _settings(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=2,
        backlog=_BACKLOG,
    )


def _listen(config: RouterConfig, name: str, port: int) -> socket.socket:
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            config.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, proto)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Accepted connections inherit this: one whose client takes nothing is dropped by the kernel,
            # also where the router has already given it up but has bytes left in its buffer.
            stall_ms = int(config.deadlines.client_stall * 1000)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stall_ms)
            sock.bind(address)
        except OSError:
            sock.close()
            raise
    except OSError as error:
        raise ConfigError(
            name,
            port,
            f"cannot listen on {config.host}:{port} ({error.strerror}): give a free port and own host",
        ) from error
    sock.set_inheritable(False)
    return sock
