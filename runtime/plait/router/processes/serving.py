"""A process that serves clients, one of several."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from collections.abc import Mapping

import uvloop

from plait.router.board import Board
from plait.router.config import RouterConfig
from plait.router.directory import Desired, Directory
from plait.router.discovery.source import Take
from plait.router.processes.channel import follow
from plait.router.report import Report, report
from plait.router.server import client_server, drain, ending_signal, serving
from plait.router.state import open_state


class ChannelSource:
    """The admin process, as the source of workers that it is to this one."""

    kind = "admin process"
    age = None

    def __init__(self) -> None:
        self.synced = False
        self.problem = ""
        self.skipped: Mapping[str, str] = {}
        self.counts: Counter[str] = Counter()

    async def watch(self, take: Take) -> None:
        """Nothing: `follow` applies the lists, withdrawals included."""


def main(config: RouterConfig, sock: socket.socket, control: str) -> None:
    """Serve until SIGTERM, drain, return."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, sock, control))


async def _serve(config: RouterConfig, sock: socket.socket, control: str) -> None:
    ending = ending_signal()
    async with open_state(config) as state:
        source = ChannelSource()

        def apply(desired: Desired) -> None:
            state.apply(desired)
            source.synced = True

        async def ask() -> list[Report]:
            return [report(state)]

        async def settle() -> list[int]:
            return []

        board = Board(
            workers=state.workers,
            source=source,
            directory=Directory(state.apply),
            admin_api_key="",
            ask=ask,
            settle=settle,
            draining=lambda: state.lifecycle.draining,
        )
        following = asyncio.create_task(
            follow(control, pid=os.getpid(), apply=apply, report=lambda: report(state))
        )
        async with serving(config, [(client_server(state, board), sock)]) as running:
            told = asyncio.create_task(ending.wait())
            await asyncio.wait({told, *running}, return_when=asyncio.FIRST_COMPLETED)
            told.cancel()
            await drain(state.lifecycle, config.deadlines.drain, ending)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
