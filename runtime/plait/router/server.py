"""The router as one process: sockets, signals, and an end that lets requests finish."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import signal
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, cast

import uvicorn
import uvloop
from starlette.types import ASGIApp

from plait.router.app import admin_app, client_app, prompt_routes
from plait.router.board import Board
from plait.router.config import ConfigError, RouterConfig
from plait.router.connection import ClientConnection, Limits
from plait.router.directory import Directory
from plait.router.discovery.source import Source
from plait.router.lifecycle import Lifecycle
from plait.router.report import Report, report
from plait.router.routes.prompts import PromptRoute
from plait.router.sources import source_of
from plait.router.state import RouterState, open_state
from plait.router.tls import Certificate

log = logging.getLogger("plait.router.server")

# Clients keep connections open for longer than uvicorn's 5 s.
_KEEP_ALIVE = 75
_BACKLOG = 2048


class Server(uvicorn.Server):
    """uvicorn without its own signal handlers: the router drains before it lets uvicorn end."""

    certificate: Certificate | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def settle_heap() -> None:
    """What is there now stays: no collection needs to look at it again.

    Requests leave no cycles behind, so the young generation is collected seldom.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def run(config: RouterConfig) -> None:
    """Serve until SIGTERM or SIGINT, drain, return. Raises ConfigError where a port cannot be had."""
    sockets = [listen(config, "port", config.host, config.port)]
    if config.admin_port:
        sockets.append(listen(config, "admin_port", config.admin_host or config.host, config.admin_port))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, sockets))


async def _serve(config: RouterConfig, sockets: list[socket.socket]) -> None:
    ending = ending_signal()
    async with open_state(config) as state, finding(state, source_of(config)) as board:
        servers = [client_server(state, board)]
        if config.admin_port:
            servers.append(server_of(admin_app(board), config))
        async with serving(config, list(zip(servers, sockets, strict=True))) as running:
            told = asyncio.create_task(ending.wait())
            await asyncio.wait({told, *running}, return_when=asyncio.FIRST_COMPLETED)
            told.cancel()
            await drain(state.lifecycle, config.deadlines.drain, ending)


@contextlib.asynccontextmanager
async def finding(state: RouterState, source: Source) -> AsyncIterator[Board]:
    """Workers come from `source`, for as long as the block runs, to this one process."""
    directory = Directory(state.apply)

    async def ask() -> list[Report]:
        return [report(state)]

    async def settle() -> list[int]:
        return []

    board = Board(
        workers=state.workers,
        source=source,
        directory=directory,
        admin_api_key=state.config.admin_api_key,
        ask=ask,
        settle=settle,
        draining=lambda: state.lifecycle.draining,
    )
    async with watching(source, directory):
        yield board


@contextlib.asynccontextmanager
async def watching(source: Source, directory: Directory) -> AsyncIterator[None]:
    """`source` tells `directory`. An end of the source, which has none, is told at once, and by the block."""

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.critical(
                "the list of workers is not followed any more: restart this router", exc_info=task.exception()
            )

    task = asyncio.create_task(source.watch(directory.discovered))
    task.add_done_callback(ended)
    # A source that needs no waiting has told its list before the first request.
    await asyncio.sleep(0)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@contextlib.asynccontextmanager
async def serving(
    config: RouterConfig, pairs: list[tuple[Server, socket.socket]]
) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Servers run while the block does, then end."""
    running = [asyncio.create_task(server.serve(sockets=[sock])) for server, sock in pairs]
    certificates = [server.certificate for server, _ in pairs if server.certificate is not None]
    renewing = asyncio.create_task(_renew(certificates))
    settle_heap()
    for _, sock in pairs:
        log.info("listening on %s:%d", *sock.getsockname()[:2])
    try:
        yield running
    finally:
        renewing.cancel()
        for server, _ in pairs:
            server.should_exit = True
        await asyncio.gather(*running)


async def drain(lifecycle: Lifecycle, seconds: float, ending: asyncio.Event) -> None:
    """Let requests finish; a second signal cuts that short."""
    log.info("ending: %d requests under way get %g s", lifecycle.in_flight, seconds)
    ending.clear()
    draining = asyncio.create_task(lifecycle.drain(seconds=seconds))
    again = asyncio.create_task(ending.wait())
    await asyncio.wait({draining, again}, return_when=asyncio.FIRST_COMPLETED)
    if not draining.done():
        log.warning("ending now: told twice")
        draining.cancel()
        await lifecycle.drain(seconds=0.001)
    again.cancel()


def ending_signal() -> asyncio.Event:
    """Set by SIGTERM and SIGINT."""
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    return ending


def client_server(state: RouterState, board: Board) -> Server:
    """The server of the clients' port, which may speak TLS."""
    config = state.config
    certificate = None
    if config.tls_certificate:
        certificate = Certificate(
            config.tls_certificate, config.tls_key, client_ca=config.tls_client_ca or None
        )
    return server_of(client_app(state, board), config, prompts=prompt_routes(state), certificate=certificate)


def server_of(
    app: ASGIApp,
    config: RouterConfig,
    *,
    prompts: Mapping[bytes, PromptRoute] = {},
    certificate: Certificate | None = None,
) -> Server:
    """A server for `app`; `prompts` are served before it."""
    limits = Limits(
        head_bytes=config.max_head_bytes,
        head_lines=config.max_headers,
        head_seconds=config.deadlines.head,
        body_seconds=config.deadlines.body,
    )
    server = Server(
        uvicorn.Config(
            app,
            http=cast(Any, functools.partial(ClientConnection, limits=limits, prompts=prompts)),
            ws="none",
            lifespan="off",
            access_log=False,
            # Who a client is says its key; X-Forwarded-* is for whoever reads the engines' logs.
            proxy_headers=False,
            log_config=None,
            log_level="warning",
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=2,
            backlog=_BACKLOG,
            ssl_context_factory=None if certificate is None else lambda config, default: certificate.context,
        )
    )
    server.certificate = certificate
    return server


def listen(config: RouterConfig, name: str, host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A bound socket. `shared`: other processes of this router bind the same port. Raises ConfigError."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, proto)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
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
            name, port, f"cannot listen on {host}:{port} ({error.strerror}): give a free port and own host"
        ) from error
    sock.set_inheritable(False)
    return sock


async def _renew(certificates: list[Certificate]) -> None:
    while certificates:
        await asyncio.sleep(0.5)
        for certificate in certificates:
            certificate.poll()
