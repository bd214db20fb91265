"""A test bench: mock engines, a router process before them, and what must hold when a test is over."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import orjson
from tests.router.harness.client import Reply, Wire, request_bytes
from tests.router.harness.lag import Lag
from tests.router.harness.process import RouterProcess, router_process
from tests.router.mocks.answers import CHAT, DONE, GENERATE
from tests.router.mocks.book import Book
from tests.router.mocks.engine import MockEngine
from tests.router.mocks.plan import Plan


def deadlines(connect: float, first_byte: float, idle: float) -> tuple[str, ...]:
    """The router's flags for these, in seconds."""
    names = ("--connect-timeout", "--first-byte-timeout", "--idle-timeout")
    return tuple(
        word
        for name, seconds in zip(names, (connect, first_byte, idle), strict=True)
        for word in (name, f"{seconds:g}")
    )


# Deadlines in seconds that a fault of the table runs into, short so that the table is.
CONNECT, FIRST_BYTE, IDLE = 0.6, 1.2, 0.8
BRIEF = deadlines(CONNECT, FIRST_BYTE, IDLE)
_NUMBERS = itertools.count(1)


class Bench:
    """Engines and a router. `engines` are prefill's, then decode's."""

    def __init__(self, book: Book, engines: list[MockEngine], router: RouterProcess, lag: Lag) -> None:
        self.book = book
        self.engines = engines
        self.router = router
        self.lag = lag

    def side(self, side: str) -> list[MockEngine]:
        """The engines of one side."""
        return [e for e in self.engines if e.role == side]

    def within(self, seconds: float) -> float:
        """`seconds` on a machine that may be busy."""
        return self.lag.within(seconds)

    async def until(self, condition: Callable[[], bool], what: str, *, seconds: float = 10.0) -> None:
        """Wait for `condition`; AssertionError with `what` where it does not come."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
            await asyncio.sleep(0.005)

    async def prompt(
        self, plan: Plan | None = None, *, streamed: bool, path: str = CHAT, **fields: Any
    ) -> Reply:
        """One prompt on a connection of its own, answered in full."""
        wire = await Wire.open(self.router.port)
        try:
            await wire.send(prompt_bytes(plan or Plan(), streamed=streamed, path=path, **fields))
            return await wire.reply()
        finally:
            wire.close()

    async def all_ready(self, *, seconds: float = 15.0) -> None:
        """All engines are in rotation."""
        expected = {e.url for e in self.engines}
        deadline = time.monotonic() + seconds
        while (ready := await self.router.ready_urls()) != expected:
            assert time.monotonic() < deadline, f"still out of rotation: {expected - ready}"
            await asyncio.sleep(0.02)

    async def idle(self, *, seconds: float = 10.0) -> None:
        """No leg is under way at an engine, and none in the router's own count."""
        await self.until(lambda: not self.book.open, "legs ended at the engines", seconds=seconds)
        deadline = time.monotonic() + seconds
        while True:
            scrape = await self.router.scrape()
            requests = scrape.total("plait_router_in_flight")
            legs = scrape.total("plait_router_worker_in_flight")
            if not requests and not legs:
                return
            assert time.monotonic() < deadline, f"in flight without an end: {requests:g} ({legs:g} legs)"
            await asyncio.sleep(0.05)

    async def recovered(self) -> None:
        """All engines are in rotation, and each has served so well of late that no breaker minds the past.

        One whose breaker has opened is born again, which is how a router is told to forget. The router, too,
        has had enough good requests that it allows itself further tries of the next.
        """
        await self.all_ready()
        served = dict.fromkeys(self.engines, 0)
        deadline = time.monotonic() + 20
        for number in itertools.count(1):
            tag = f"well-{next(_NUMBERS)}"
            reply = await self.prompt(Plan(tag), streamed=False)
            legs = self.book.by_tag.pop(tag, [])
            if reply.status == 200:
                for leg in legs:
                    served[leg.engine] += 1
            if number >= 6 and all(count >= 2 for count in served.values()):
                return
            assert time.monotonic() < deadline, f"no traffic to { {e.name: n for e, n in served.items()} }"
            if number % 16 == 0:
                for engine in served:
                    if served[engine] == 0:
                        await self._reborn(engine)

    async def _reborn(self, engine: MockEngine) -> None:
        engine.reborn()
        seen = engine.polls
        await self.until(lambda: engine.polls > seen + 1, f"{engine.name} is polled")

    def faults_of_the_suite(self) -> list[str]:
        """What must never be, whatever a test does."""
        found = [f"room used twice: {side} {room}" for side, room in self.book.reused_rooms]
        for engine in self.engines:
            found += [f"{engine.name}: not HTTP: {what}" for what in engine.malformed]
            found += [f"{engine.name}: asked for {what}" for what in engine.unexpected]
            found += [f"{engine.name}: the mock failed: {what!r}" for what in engine.errors]
        return found

    async def nothing_left(self, *, seconds: float = 12.0) -> None:
        """Nothing is in flight, and all connections are closed but what health checks need."""
        await self.idle()
        assert not self.faults_of_the_suite()
        ports = [int(e.url.rsplit(":", 1)[1]) for e in self.engines]
        deadline = time.monotonic() + seconds
        while True:
            upstream = self.router.sockets(to_ports=ports)
            downstream = [
                s for s in self.router.sockets(at_port=self.router.port) if not s.endswith("TIME_WAIT")
            ]
            if len(upstream) <= 2 * len(ports) and not downstream:
                return
            assert time.monotonic() < deadline, f"connections left: {upstream} {downstream}"
            await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def bench(
    *, prefill: int = 2, decode: int = 2, flags: Iterable[str] = BRIEF, keep_raw: bool = True
) -> AsyncIterator[Bench]:
    """A ready bench; the suite's own rules are checked when the block ends."""
    book = Book(keep_raw=keep_raw)
    engines = [MockEngine("prefill", book, cp=2) for _ in range(prefill)]
    engines += [MockEngine("decode", book) for _ in range(decode)]
    with Lag().watched() as lag:
        try:
            for engine in engines:
                await engine.start()
            async with router_process(
                prefill=[e.url for e in engines if e.role == "prefill"],
                decode=[e.url for e in engines if e.role == "decode"],
                flags=flags,
            ) as router:
                made = Bench(book, engines, router, lag)
                await made.all_ready(seconds=30)
                lag.worst = 0.0  # starting a process is no measure of what comes
                yield made
                assert not made.faults_of_the_suite()
                assert not (traces := router.traces()), traces[0]
        finally:
            for engine in engines:
                await engine.stop()


def prompt_body(plan: Plan, *, streamed: bool, path: str = CHAT, **fields: Any) -> dict[str, Any]:
    """A prompt that no other one shares a prefix with, carrying `plan`."""
    text = f"{next(_NUMBERS)}: a prompt of its own"
    body: dict[str, Any] = {"model": "tiny"}
    if path == CHAT:
        body["messages"] = [{"role": "user", "content": text}]
    else:
        body["text" if path == GENERATE else "prompt"] = text
    if streamed:
        body["stream"] = True
    return body | plan.field() | fields


def prompt_bytes(plan: Plan, *, streamed: bool, path: str = CHAT, **fields: Any) -> bytes:
    """The whole request."""
    body = prompt_body(plan, streamed=streamed, path=path, **fields)
    return request_bytes("POST", path, orjson.dumps(body))


def complete(reply: Reply, plan: Plan, *, streamed: bool) -> bool:
    """Whether `reply` is the whole good answer to a prompt with `plan`."""
    if reply.status != 200 or reply.cut:
        return False
    if streamed:
        return reply.body.endswith(DONE) and reply.body.count(b"data: ") == plan.events + 1
    return reply.body.count(b" a") >= plan.events
