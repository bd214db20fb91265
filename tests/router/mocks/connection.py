"""One connection to a mock engine: parses requests, answers the small routes, runs prompts as tasks."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from typing import TYPE_CHECKING

import httptools
import orjson
from tests.router.mocks import answers
from tests.router.mocks.book import ANSWERED, CLOSED, DIED, Leg
from tests.router.mocks.plan import Plan

if TYPE_CHECKING:
    from tests.router.mocks.engine import MockEngine

JSON_HEAD = (
    b"HTTP/1.1 %d %s\r\nserver: uvicorn\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
)
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_REASONS = {200: b"OK", 400: b"Bad Request", 404: b"Not Found", 500: b"Internal Server Error"}


class Connection(asyncio.Protocol):
    """A router's connection. `served`: requests that came over it."""

    def __init__(self, engine: MockEngine) -> None:
        self.engine = engine
        self.served = 0
        self.exchange: Exchange | None = None
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._fresh()

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    def _fresh(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []

    # --- transport ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.engine.connections.add(self)
        self.engine.accepted += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.engine.connections.discard(self)
        self._writable.set()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            # What a router sends is always whole: this is its fault, and tests look here.
            self.engine.malformed.append(repr(error))
            self.reset()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def reset(self) -> None:
        """Close so that the peer gets a reset, as when a process dies with unread data."""
        if self._transport is None or self._transport.is_closing():
            return
        sock = self._transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    # --- parser ---------------------------------------------------------------------------------------------

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self.engine.never_read and self._url.decode() in answers.PROMPT_ROUTES:
            self.engine.never_read_hits += 1
            self.transport.pause_reading()

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self.served += 1
        path, body, headers = self._url.decode(), b"".join(self._body), self._headers
        self._url, self._headers, self._body = b"", {}, []
        if path in answers.PROMPT_ROUTES:
            self._prompt(path, body, headers)
        else:
            self._small(path, body)

    # --- routes ---------------------------------------------------------------------------------------------

    def _prompt(self, path: str, raw: bytes, headers: dict[str, str]) -> None:
        engine = self.engine
        if engine.reset_when_reused and self.served > 1:
            engine.resets += 1
            self.reset()
            return
        body = orjson.loads(raw)
        plan = Plan.of(body)
        rooms, rids = body["bootstrap_room"], body["rid"]
        many = isinstance(rooms, list)
        leg = Leg(
            engine,
            path,
            plan.tag,
            tuple(rooms) if many else (rooms,),
            tuple(rids) if many else (rids,),
        )
        if engine.book.keep_raw:
            leg.raw, leg.headers = raw, headers
        engine.book.enter(leg)
        self.exchange = Exchange(self, leg, plan, streamed=bool(body.get("stream")))
        self._task = asyncio.get_running_loop().create_task(self._run(self.exchange))

    async def _run(self, exchange: Exchange) -> None:
        leg = exchange.leg
        try:
            await self.engine.serve(exchange)
            leg.end(ANSWERED)
            if self.engine.close_after_answer:
                self.transport.close()
        except (asyncio.CancelledError, ConnectionError):
            leg.end(CLOSED)  # an engine that ended the leg itself has noted it before
        except Exception as error:
            self.engine.errors.append(error)
            self.reset()
            raise
        finally:
            self._task = self.exchange = None
            self.engine.book.leave(leg)

    def _small(self, path: str, body: bytes) -> None:
        engine = self.engine
        if path == "/plait/status":
            engine.polls += 1
            if engine.status_mode == "hang":
                return
            if engine.status_mode == "ok":
                self._answer_small(engine.status())
            else:
                self.answer(int(engine.status_mode), b"{}")
        elif path == "/abort_request":
            if engine.abort_mode == "hang":
                return
            engine.aborts += 1
            engine.book.abort(engine, orjson.loads(body)["rid"])
            self._answer_small(b"")
        elif path == "/v1/models":
            self.answer(200, answers.models("tiny"))
        elif path in ("/health", "/get_model_info", "/server_info"):
            self.answer(200, b"{}")
        else:
            engine.unexpected.append(path)
            self.answer(404, b'{"detail":"Not Found"}')

    def answer(self, status: int, body: bytes) -> None:
        """A whole JSON answer."""
        if not self.transport.is_closing():
            self.transport.write(JSON_HEAD % (status, _REASONS.get(status, b"Unknown"), len(body)) + body)

    def _answer_small(self, body: bytes) -> None:
        if self.engine.keep_small:
            self.answer(200, body)
        elif not self.transport.is_closing():
            head = JSON_HEAD % (200, b"OK", len(body))
            self.transport.write(head.removesuffix(b"\r\n") + b"connection: close\r\n\r\n" + body)
            self.transport.close()

    async def drain(self) -> None:
        """Wait until the peer takes bytes. Raises ConnectionError where it has gone."""
        await self._writable.wait()
        if self.transport.is_closing():
            raise ConnectionResetError("the router hung up")


class Exchange:
    """One prompt on a connection: what faults are made of."""

    def __init__(self, connection: Connection, leg: Leg, plan: Plan, *, streamed: bool) -> None:
        self.connection = connection
        self.leg = leg
        self.plan = plan
        self.streamed = streamed
        self.path = leg.path
        self.side = leg.engine.role
        self._meeting = leg.engine.book.meeting(leg.rooms[0])

    async def pair_up(self) -> None:
        """Hand over from prefill to decode: returns when this side may answer."""
        if self.side == "prefill":
            await self._meeting.asked.wait()
            self._meeting.sent.set()
        else:
            self._meeting.asked.set()
            await self._meeting.sent.wait()

    async def both_here(self) -> None:
        """Wait until the attempt's other leg has arrived at its engine, 1 s at most."""
        for _ in range(200):
            if self._meeting.legs >= 2:
                return
            await asyncio.sleep(0.005)

    def happened(self) -> None:
        """From now on the router can notice the fault."""
        if self.leg.fault_at is None:
            self.leg.fault_at = time.monotonic()

    async def raw(self, data: bytes) -> None:
        """Send bytes as they are. Raises ConnectionError where the router has gone."""
        self.connection.transport.write(data)
        await self.connection.drain()

    async def head(self) -> None:
        """The head of a good answer, its body due in chunks."""
        head = (
            STREAM_HEAD if self.streamed else STREAM_HEAD.replace(b"text/event-stream", b"application/json")
        )
        await self.raw(head)

    async def chunk(self, data: bytes) -> None:
        """One part of a body in chunks."""
        self.leg.sent += len(data)
        await self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    async def part(self) -> None:
        """The first part of a good answer: two events, or half a JSON."""
        if self.streamed:
            for number in range(1 if self.side == "prefill" else 2):
                await self.chunk(answers.event(self.path, self.leg.rid, number))
        else:
            await self.chunk(answers.whole(self.path, self.leg.rid, self.plan.events)[:-20])

    async def last_chunk(self) -> None:
        """The end of a body in chunks."""
        await self.raw(b"0\r\n\r\n")

    def status(self, code: int, body: bytes) -> None:
        """A whole answer with this status."""
        self.connection.answer(code, body)

    def reset(self) -> None:
        """The process dies: the router gets a reset."""
        self.happened()
        self.leg.end(DIED)
        self.connection.reset()

    def close(self) -> None:
        """The process ends the connection: the router gets what was written, then a FIN."""
        self.happened()
        self.leg.end(DIED)
        self.connection.transport.close()

    async def for_ever(self) -> None:
        """Until the router hangs up."""
        await asyncio.Event().wait()
