"""From prefill to decode: over the network, by room, at the prefill's bootstrap port.

Decode connects, names its room in a line, and waits for the answer `sent`, which comes once a request with
that room has reached prefill. Whoever is closed off by a network policy or a wrong address waits in vain, as
real engines do.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict

_GIVE_UP_S = 30.0


class Rooms:
    """Prefill's side."""

    def __init__(self) -> None:
        self._asked: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)
        self._sent: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)

    async def serve(self, host: str, port: int) -> asyncio.Server:
        """Listen as the bootstrap server."""
        return await asyncio.start_server(self._talk, host, port)

    async def hand_over(self, room: int) -> None:
        """Return once decode has asked for the room, and has been told. Raises TimeoutError."""
        self._sent[room].set()
        async with asyncio.timeout(_GIVE_UP_S):
            await self._asked[room].wait()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError):
            room = int(await reader.readline())
            self._asked[room].set()
            await self._sent[room].wait()
            writer.write(b"sent\n")
            await writer.drain()
        writer.close()


async def take_over(host: str, port: int, room: int) -> None:
    """Decode's side: return once prefill has sent. Raises OSError or TimeoutError."""
    async with asyncio.timeout(_GIVE_UP_S):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(f"{room}\n".encode())
            if await reader.readline() != b"sent\n":
                raise ConnectionResetError("prefill hung up")
        finally:
            writer.close()
