"""Two mock engines for the conformance tests: raw HTTP on loopback, in a thread, so that tests can block.

They answer as stock SGLang does (`shapes`), decode not before prefill has "sent" the same room; they
remember every request byte for byte, and can be told to answer otherwise. Whatever is asked of them beside
the routes that a router may use is remembered as `strays`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote

import httptools
from tests.router.conformance import shapes

from plait.contract.status import STATUS_PATH, EngineStatus, RankStatus

PROMPT_PATHS = ("/v1/chat/completions", "/v1/completions", "/generate")
# What a router may ask of an engine beside prompts.
_QUIET = {("GET", STATUS_PATH), ("GET", "/health"), ("GET", "/v1/models")}


class Seen(NamedTuple):
    """One prompt as it came. Header names in lower case, in order."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        value = json.loads(self.raw)
        assert isinstance(value, dict)
        return value

    def header(self, name: str) -> str | None:
        """The header's value, None without one. Fails where it was sent twice."""
        values = [v for n, v in self.headers if n == name]
        assert len(values) <= 1, f"{name} sent {len(values)} times"
        return values[0] if values else None


class Answer(NamedTuple):
    """What to send. `parts` in chunked coding, one write each.

    `then`: end at once; "late": end a moment after the last part; "die": break the connection then; "hang":
    send nothing at all.
    """

    parts: list[bytes]
    status: int = 200
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)
    then: Literal["end", "late", "die", "hang"] = "end"


Behave = Callable[[Seen], Answer]
# What was sent before has been read by then, so that the end is seen on its own.
_LAST_WORDS_S = 0.1


def whole(value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Answer:
    """A JSON answer."""
    sent = {"content-type": "application/json"} | (headers or {})
    return Answer([json.dumps(value).encode()], status, tuple(sent.items()))


def events(payloads: list[bytes], *, then: Literal["end", "late", "die"] = "end") -> Answer:
    """A stream of events."""
    return Answer(payloads, headers=(("content-type", "text/event-stream; charset=utf-8"),), then=then)


def refusal(status: int, message: str, **headers: str) -> Answer:
    """An error as SGLang's OpenAI routes state it."""
    body = {"object": "error", "message": message, "type": "BadRequest", "param": None, "code": status}
    return whole(body, status=status, headers={k.replace("_", "-"): v for k, v in headers.items()})


def stock(seen: Seen) -> Answer:
    """What a healthy engine answers."""
    body = seen.body
    if body.get("stream"):
        return events(shapes.stream(seen.path, body))
    return Answer([shapes.whole(seen.path, body)])


class Rooms:
    """Rooms that prefill has sent. Used in one event loop."""

    def __init__(self) -> None:
        self._sent: set[int] = set()
        self._news = asyncio.Condition()

    async def add(self, rooms: set[int]) -> None:
        async with self._news:
            self._sent |= rooms
            self._news.notify_all()

    async def wait_for(self, rooms: set[int]) -> None:
        async with self._news:
            await self._news.wait_for(lambda: rooms <= self._sent)


@contextlib.contextmanager
def pair() -> Iterator[tuple[Engine, Engine]]:
    """A prefill and a decode engine that serve for as long as the block runs."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="mock engines", daemon=True)
    thread.start()
    sent = Rooms()
    prefill, decode = Engine("prefill", sent), Engine("decode", sent)
    try:
        for engine in (prefill, decode):
            asyncio.run_coroutine_threadsafe(engine.listen(), loop).result(10)
        yield prefill, decode
    finally:
        asyncio.run_coroutine_threadsafe(_cancel_all(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class Engine:
    """One engine. `behave` answers prompts."""

    def __init__(self, role: Literal["prefill", "decode"], sent: Rooms) -> None:
        self.role = role
        self.behave: Behave = stock
        self.prompts: list[Seen] = []
        self.aborts: list[dict[str, Any]] = []
        self.strays: list[tuple[str, str]] = []
        self.sent = sent
        self.url = ""

    @property
    def asked(self) -> int:
        """Requests that an attacker or a mistake could have brought here: prompts, and strays."""
        return len(self.prompts) + len(self.strays)

    @contextlib.contextmanager
    def behaving(self, behave: Behave | Answer) -> Iterator[None]:
        """Answer otherwise for as long as the block runs."""
        self.behave = behave if callable(behave) else lambda _: behave
        try:
            yield
        finally:
            self.behave = stock

    async def listen(self) -> None:
        """Start to serve, on a port of the system's choice."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def answer(self, seen: Seen) -> Answer:
        """Route one request (in the engine's thread)."""
        path = seen.path.partition("?")[0]
        if seen.method == "POST" and path in PROMPT_PATHS:
            self.prompts.append(seen)
            return self.behave(seen)
        if seen.method == "POST" and path == "/abort_request":
            self.aborts.append(seen.body)
            return Answer([])
        if (seen.method, path) in _QUIET:
            return self._quiet(path)
        if seen.method == "GET" and path == f"/v1/models/{shapes.MODEL}":
            return whole(shapes.MODEL_CARD)
        if seen.method == "GET" and path.startswith("/v1/models/") and ".." not in unquote(path):
            return whole(shapes.NO_MODEL, status=404)
        self.strays.append((seen.method, seen.path))
        # As dangerous as a real one: whoever gets this through has reached an engine's admin route.
        return Answer([b'{"reached": "an engine"}'])

    def _quiet(self, path: str) -> Answer:
        if path == STATUS_PATH:
            return Answer([self._status()])
        if path == "/v1/models":
            return whole({"object": "list", "data": [shapes.MODEL_CARD]})
        return Answer([])

    def _status(self) -> bytes:
        ranks = [RankStatus(rank=0, pid=1, updated_at=time.time())]
        status = EngineStatus(
            role=self.role,
            layout="plain",
            model=shapes.MODEL,
            wire_hash="wire",
            group_hash="group",
            started_at=1.0,
            ranks=ranks,
        )
        return status.model_dump_json().encode()


class _Connection(asyncio.Protocol):
    """One connection from the router; requests are answered one after another."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        self._url = b""
        self._headers: list[tuple[str, str]] = []
        self._body: list[bytes] = []
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._url, self._headers, self._body = b"", [], []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode()
        seen = Seen(method, self._url.decode("latin-1"), self._headers, b"".join(self._body))
        self._task = asyncio.create_task(self._send(seen))

    async def _send(self, seen: Seen) -> None:
        answer = self._engine.answer(seen)
        if answer.then == "hang":
            return
        if answer.status == 200 and seen.path in PROMPT_PATHS:
            await self._transfer(seen)
        head = [f"HTTP/1.1 {answer.status} Mock", *(f"{n}: {v}" for n, v in answer.headers)]
        head.append("transfer-encoding: chunked")
        self._transport.write(("\r\n".join(head) + "\r\n\r\n").encode())
        for part in filter(None, answer.parts):
            self._transport.write(b"%x\r\n%s\r\n" % (len(part), part))
        if answer.then != "end":
            await asyncio.sleep(_LAST_WORDS_S)
        if answer.then == "die":
            self._transport.close()
        else:
            self._transport.write(b"0\r\n\r\n")

    async def _transfer(self, seen: Seen) -> None:
        room = seen.body.get("bootstrap_room")
        rooms = set(room if isinstance(room, list) else [room])
        if self._engine.role == "prefill":
            await self._engine.sent.add(rooms)
        else:
            await self._engine.sent.wait_for(rooms)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()
