"""The process of the admin port: finds workers, tells the serving processes, and shows one view of them."""

from __future__ import annotations

import asyncio
import os
import socket

import uvloop

from plait.router.app import admin_app
from plait.router.board import Board
from plait.router.config import RouterConfig
from plait.router.directory import Desired, Directory
from plait.router.processes import record
from plait.router.processes.channel import Hub
from plait.router.registry import Registry
from plait.router.server import ending_signal, server_of, serving, watching
from plait.router.sources import source_of
from plait.router.state import trust_of


def main(config: RouterConfig, sock: socket.socket, control: str) -> None:
    """Serve the admin port until SIGTERM."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, sock, control))


async def _serve(config: RouterConfig, sock: socket.socket, control: str) -> None:
    ending = ending_signal()
    hub = Hub()
    await hub.open(control)
    async with Registry(config, trust=trust_of(config)) as workers:

        def apply(desired: Desired) -> None:
            workers.withdraw(desired.withdrawn)
            workers.set_targets(desired.targets)
            hub.tell(desired)
            record.save(path, directory.known)

        source = source_of(config)
        # An admin process that takes a dead one's place goes on with its list, and the changes made to it.
        path = os.path.join(os.path.dirname(control), "workers.json")
        directory = Directory(apply, known=record.load(path))
        if directory.desired.targets:
            apply(directory.desired)
        board = Board(
            workers=workers,
            source=source,
            directory=directory,
            admin_api_key=config.admin_api_key,
            ask=hub.ask,
            settle=hub.settle,
            draining=ending.is_set,
            ended=lambda: hub.ended,
            without_pair=lambda: config.processes - sum(r.pairs > 0 and not r.draining for r in hub.reports),
        )
        async with (
            watching(source, directory),
            serving(config, [(server_of(admin_app(board), config), sock)]) as running,
        ):
            listening = asyncio.create_task(hub.keep_asking())
            told = asyncio.create_task(ending.wait())
            await asyncio.wait({told, *running}, return_when=asyncio.FIRST_COMPLETED)
            told.cancel()
            listening.cancel()
        await hub.close()
