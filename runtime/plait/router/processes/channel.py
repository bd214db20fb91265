"""The line between the admin process and the serving ones: JSON objects, one a line, over a Unix socket.

To a serving process: `{"seq": N, "desired": …}` (the whole list of workers) and `{"ask": N}`. Back:
`{"pid": P}` first, then `{"applied": N}` and `{"told": N, "report": …}`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson

from plait.router.directory import Desired, decode, encode
from plait.router.report import Report
from plait.router.tally import Row, added

log = logging.getLogger("plait.router.processes")

_LIMIT = 64 << 20  # a line: thousands of workers
_REPORT_SECONDS = 1.0
_SETTLE_SECONDS = 2.0
_RECONNECT_SECONDS = 0.1


class Hub:
    """The admin process's end. `tell` hands the list of workers to all; who comes later gets the last."""

    def __init__(self) -> None:
        self._peers: set[_Peer] = set()
        self._desired = Desired()
        self._seq = 0
        self._asks = 0
        self._server: asyncio.Server | None = None
        self._moved = asyncio.Event()
        self.reports: list[Report] = []
        """The last round's."""
        self.ended: list[Row] = []
        """What processes that have left had counted, as of their last report."""

    async def open(self, path: str) -> None:
        """Listen at `path`."""
        self._server = await asyncio.start_unix_server(self._met, path, limit=_LIMIT)

    async def close(self) -> None:
        """Hear and tell no more."""
        if self._server is not None:
            self._server.close()
        for peer in list(self._peers):
            peer.writer.close()

    def tell(self, desired: Desired) -> None:
        """This is the list now."""
        self._desired, self._seq = desired, self._seq + 1
        line = self._line()
        for peer in self._peers:
            peer.writer.write(line)

    async def settle(self) -> list[int]:
        """Wait until all have applied the last list; pids of those that have not in time."""
        wanted = self._seq
        try:
            async with asyncio.timeout(_SETTLE_SECONDS):
                while any(p.applied < wanted for p in self._peers):
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            return sorted(p.pid for p in self._peers if p.applied < wanted)
        return []

    async def ask(self) -> list[Report]:
        """Reports of all that answer in time."""
        self._asks += 1
        number = self._asks
        for peer in self._peers:
            peer.writer.write(orjson.dumps({"ask": number}) + b"\n")
        try:
            async with asyncio.timeout(_REPORT_SECONDS):
                while any(p.told < number for p in self._peers):
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            log.warning("a serving process is slow to report")
        found = [p.report for p in self._peers if p.told >= number and p.report is not None]
        return sorted(found, key=lambda r: r.pid)

    async def keep_asking(self) -> None:
        """Ask every second, so that little is lost of what a process had counted when it dies."""
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            self.reports = await self.ask()

    async def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = _Peer(writer)
        self._peers.add(peer)
        writer.write(self._line())
        try:
            async for message in _lines(reader):
                peer.hear(message)
                self._moved.set()
        finally:
            self._peers.discard(peer)
            if peer.report is not None:
                self.ended = added([self.ended, peer.report.tallies])
            self._moved.set()
            writer.close()

    def _line(self) -> bytes:
        return orjson.dumps({"seq": self._seq, "desired": encode(self._desired)}) + b"\n"


class _Peer:
    """One serving process, as the hub knows it."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.pid = 0
        self.applied = -1
        self.told = 0
        self.report: Report | None = None

    def hear(self, message: dict[str, Any]) -> None:
        self.pid = message.get("pid", self.pid)
        self.applied = message.get("applied", self.applied)
        if "report" in message:
            self.told, self.report = message["told"], Report.decode(message["report"])


async def follow(
    path: str, *, pid: int, apply: Callable[[Desired], None], report: Callable[[], Report]
) -> None:
    """A serving process's end, for as long as it lives: connects, and again when the admin process is new.

    What was applied last stays in force while nobody is there to be followed.
    """
    while True:
        try:
            reader, writer = await asyncio.open_unix_connection(path, limit=_LIMIT)
        except OSError:
            await asyncio.sleep(_RECONNECT_SECONDS)
            continue
        try:
            writer.write(orjson.dumps({"pid": pid}) + b"\n")
            async for message in _lines(reader):
                if "seq" in message:
                    # The hub's empty list before its source has spoken is no list.
                    if message["seq"]:
                        apply(decode(message["desired"]))
                    answer: dict[str, Any] = {"applied": message["seq"]}
                else:
                    answer = {"told": message["ask"], "report": report().encode()}
                writer.write(orjson.dumps(answer) + b"\n")
        except OSError:
            log.debug("the admin process left")
        finally:
            writer.close()
        await asyncio.sleep(_RECONNECT_SECONDS)


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    # The last line may be torn: its writer was killed.
    while (line := await reader.readline()).endswith(b"\n"):
        yield orjson.loads(line)
