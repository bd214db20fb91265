"""A little engine for the router's tests: real HTTP on loopback, no model, every way to fail.

It answers like stock SGLang (chat, completions, /generate, streamed or not), keeps what it was sent, and a
decode stub can be told to wait for ever, as a real one does whose prefill never sends.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from aiohttp import web

from plait.contract.status import EngineStatus, PageCounts, PairCounts, RankStatus, TransferCounts
from plait.router.body import Route

CHUNK = b'data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"tiny","choices":[%s]}\n\n'
DONE = b"data: [DONE]\n\n"


class Seen(NamedTuple):
    """One request that the engine got."""

    path: str
    headers: dict[str, str]
    raw: bytes
    body: dict[str, Any]
    at: float


Behaviour = Callable[["StubEngine", web.Request, Seen], Awaitable[web.StreamResponse]]


class StubEngine:
    """One engine. `behave` answers the prompt routes; `status` is served at /plait/status (None: 404)."""

    def __init__(self, role: str, *, wire_hash: str = "wire-a", cp: int = 1) -> None:
        self.role = role
        self.behave: Behaviour = answer
        self.status: EngineStatus | None = engine_status(role, wire_hash=wire_hash, cp=cp)
        self.status_raw: bytes | None = None  # served instead of `status`
        self.status_delay = 0.0
        self.status_polls = 0
        self.seen: list[Seen] = []
        self.aborts: list[tuple[str, float]] = []
        self.left: list[float] = []  # when a client closed a connection whose answer was under way
        self.aborted = asyncio.Event()
        self.arrived = asyncio.Event()
        self.url = ""
        self.api_key = ""
        self.peers: set[object] = set()  # connections that prompts came on
        self.tls: ssl.SSLContext | None = None
        self._runner: web.AppRunner | None = None
        self._port = 0

    async def start(self) -> StubEngine:
        app = web.Application(client_max_size=64 << 20)
        for route in Route:
            app.router.add_post(route, self._prompt)
        app.router.add_post("/abort_request", self._abort)
        app.router.add_get("/plait/status", self._status)
        app.router.add_get("/v1/models", self._models)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True, ssl_context=self.tls)
        await site.start()
        assert site._server is not None
        self._port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        self.url = f"{'https' if self.tls else 'http'}://127.0.0.1:{self._port}"
        return self

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @property
    def prompts(self) -> list[dict[str, Any]]:
        return [s.body for s in self.seen]

    async def _prompt(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        self.peers.add(request.transport.get_extra_info("peername"))
        raw = await request.read()
        seen = Seen(request.path, dict(request.headers), raw, json.loads(raw), time.monotonic())
        self.seen.append(seen)
        self.arrived.set()
        try:
            return await self.behave(self, request, seen)
        except asyncio.CancelledError:
            self.left.append(time.monotonic())
            raise

    async def _abort(self, request: web.Request) -> web.Response:
        self.aborts.append(((await request.json())["rid"], time.monotonic()))
        self.aborted.set()
        return web.Response()

    async def _status(self, request: web.Request) -> web.Response:
        self.status_polls += 1
        await asyncio.sleep(self.status_delay)
        if self.api_key and request.headers.get("authorization") != f"Bearer {self.api_key}":
            return web.Response(status=401)
        if self.status is None:
            return web.Response(status=404)
        body = self.status_raw or self.status.model_dump_json().encode()
        return web.Response(body=body, content_type="application/json")

    async def _models(self, request: web.Request) -> web.Response:
        card = {"id": "tiny", "object": "model", "created": 1, "owned_by": self.role}
        return web.json_response({"object": "list", "data": [card]})


def engine_status(role: str, *, wire_hash: str, cp: int) -> EngineStatus:
    """A status with figures that differ by rank."""
    ranks = [
        RankStatus(
            rank=r,
            pid=1000 + r,
            updated_at=time.time(),
            age_s=0.1,
            pages=PageCounts(owned=100 + r, free=60, used=40 + r, in_flight=2),
            transfer=TransferCounts(
                pages=7 + r,
                bytes=700,
                seconds=0.5,
                failures=r,
                pairs=[PairCounts(peer="10.0.0.9:1", pages=7 + r)],
            ),
        )
        for r in range(cp)
    ]
    status = EngineStatus(
        role=role,  # type: ignore[arg-type]
        layout="shared" if role == "prefill" else "plain",
        split="page-interleave" if role == "prefill" else "",
        cp=cp,
        model="tiny",
        wire_hash=wire_hash,
        group_hash="group",
        started_at=1.0,
        ranks=ranks,
    )
    status.capacity.tokens, status.capacity.tokens_replicated = 12_800, 6_400
    return status


def chat_events(words: list[str]) -> list[bytes]:
    """A stock chat stream: role, words, finish, [DONE]."""
    choice = '{"index":0,"delta":{"content":%s},"finish_reason":%s}'
    events = [CHUNK % b'{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}']
    events += [CHUNK % (choice % (json.dumps(w), "null")).encode() for w in words]
    return [*events, CHUNK % (choice % ('""', '"stop"')).encode(), DONE]


def whole(seen: Seen) -> Any:
    """The answer of a request that is not streamed, by route."""
    if seen.path == Route.GENERATE:
        meta = {"id": seen.body["rid"], "finish_reason": {"type": "length", "length": 2}}
        return {"text": " a b", "output_ids": [1, 2], "meta_info": meta}
    chat = seen.path == Route.CHAT
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "logprobs": None}
    choice |= {"message": {"role": "assistant", "content": "a b"}} if chat else {"text": "a b"}
    return {
        "id": seen.body["rid"],
        "object": "chat.completion" if chat else "text_completion",
        "created": 1,
        "model": "tiny",
        "choices": [choice],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }


async def stream(request: web.Request, events: list[bytes], *, pause: float = 0.0) -> web.StreamResponse:
    """Send `events`, one write each."""
    response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    for event in events:
        await response.write(event)
        await asyncio.sleep(pause)
    return response


async def answer(engine: StubEngine, request: web.Request, seen: Seen) -> web.StreamResponse:
    """As a healthy engine does."""
    if not seen.body.get("stream"):
        return web.json_response(whole(seen))
    if seen.path == Route.CHAT:
        events = chat_events(["Hel", "lo"])
    elif seen.path == Route.COMPLETIONS:
        part = {"id": "x", "object": "text_completion", "created": 1, "model": "tiny"}
        choices = [{"index": 0, "text": w, "logprobs": None, "finish_reason": None} for w in ("a", " b")]
        events = [b"data: " + json.dumps(part | {"choices": [c]}).encode() + b"\n\n" for c in choices] + [
            DONE
        ]
    else:
        events = [b"data: " + json.dumps(whole(seen)).encode() + b"\n\n", DONE]
    return await stream(request, events if engine.role == "decode" else [events[0], DONE])


async def wait_for_ever(engine: StubEngine, request: web.Request, seen: Seen) -> web.StreamResponse:
    """As decode does when prefill never sends; ends when it is aborted."""
    await engine.aborted.wait()
    return web.json_response({"error": {"message": "aborted"}}, status=500)


async def hang(engine: StubEngine, request: web.Request, seen: Seen) -> web.StreamResponse:
    """Answers nothing, and takes no notice of an abort."""
    await asyncio.sleep(3600)
    raise AssertionError("unreachable")


async def reset(engine: StubEngine, request: web.Request, seen: Seen) -> web.StreamResponse:
    """The process dies before it answers."""
    assert request.transport is not None
    request.transport.abort()  # type: ignore[attr-defined]
    await asyncio.sleep(0)
    return web.Response()


def status(code: int, message: str = "no", *, flat: bool = True, delay: float = 0.0) -> Behaviour:
    """An error status, in SGLang's flat form (OpenAI routes) or nested (/generate)."""

    async def behave(engine: StubEngine, request: web.Request, seen: Seen) -> web.StreamResponse:
        await asyncio.sleep(delay)
        inner = {"object": "error", "message": message, "type": "BadRequest", "param": None, "code": code}
        return web.json_response(inner if flat else {"error": inner}, status=code)

    return behave


def streams(
    events: list[bytes],
    *,
    then: str = "end",
    pause: float = 0.0,
) -> Behaviour:
    """Send `events`, then: "end" the answer, "die" (connection reset), or "stall"."""

    async def behave(engine: StubEngine, request: web.Request, seen: Seen) -> web.StreamResponse:
        response = await stream(request, events, pause=pause)
        if then == "die":
            assert request.transport is not None
            # Let the last write leave before the line breaks.
            await asyncio.sleep(0.05)
            request.transport.abort()  # type: ignore[attr-defined]
        elif then == "stall":
            await asyncio.sleep(3600)
        return response

    return behave


def replies(value: Any, *, delay: float = 0.0) -> Behaviour:
    """A 200 with this JSON."""

    async def behave(engine: StubEngine, request: web.Request, seen: Seen) -> web.StreamResponse:
        await asyncio.sleep(delay)
        return web.json_response(value)

    return behave
