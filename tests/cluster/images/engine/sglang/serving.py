"""The routes that a router and a kubelet use, answered as the stock server does."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from sglang.handover import Rooms, take_over
from sglang.identity import Identity
from sglang.switches import Switches

_MOST_TOKENS = 2048


class Serving:
    """One engine's server."""

    def __init__(self, identity: Identity, switches: Switches, rooms: Rooms) -> None:
        self._identity, self._switches, self._rooms = identity, switches, rooms
        self._running: dict[str, asyncio.Task[Any]] = {}

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        if self._switches.status != "off":
            app.router.add_get("/plait/status", self._status)
        app.router.add_post("/abort_request", self._abort)
        for path in ("/v1/chat/completions", "/v1/completions", "/generate"):
            app.router.add_post(path, self._prompt)
        return app

    @property
    def running(self) -> int:
        """Requests under way."""
        return len(self._running)

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=503 if self._switches.never_ready else 200)

    async def _status(self, _: web.Request) -> web.Response:
        status = self._identity.status(running=self.running + self._switches.busy)
        return web.Response(text=status.model_dump_json(), content_type="application/json")

    async def _models(self, _: web.Request) -> web.Response:
        card = {"id": self._identity.told.model, "object": "model", "created": 1, "owned_by": "sglang"}
        return web.json_response({"object": "list", "data": [card]})

    async def _abort(self, request: web.Request) -> web.Response:
        rid = (await request.json()).get("rid", "")
        for each in rid if isinstance(rid, list) else [rid]:
            if each in self._running:
                self._running[each].cancel()
        return web.Response()

    async def _prompt(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        rid = body.get("rid") or uuid.uuid4().hex
        name = rid[0] if isinstance(rid, list) else rid
        task = asyncio.current_task()
        assert task is not None
        self._running[name] = task
        try:
            rooms = body.get("bootstrap_room")
            if rooms is None:
                return self._refusal("a request to a prefill or decode engine has a bootstrap_room", 400)
            try:
                await self._pair_up(body, rooms if isinstance(rooms, list) else [rooms])
            except (OSError, TimeoutError) as error:
                return self._refusal(f"KVTransferError: {type(error).__name__}", 500)
            return await self._answer(request, body, name)
        finally:
            del self._running[name]

    async def _pair_up(self, body: dict[str, Any], rooms: list[int]) -> None:
        if self._identity.told.role == "prefill":
            await asyncio.gather(*(self._rooms.hand_over(room) for room in rooms))
            return
        host, port = body["bootstrap_host"], body["bootstrap_port"]
        hosts = host if isinstance(host, list) else [host] * len(rooms)
        ports = port if isinstance(port, list) else [port] * len(rooms)
        await asyncio.gather(*(take_over(h, p, r) for h, p, r in zip(hosts, ports, rooms, strict=True)))

    async def _answer(self, request: web.Request, body: dict[str, Any], rid: str) -> web.StreamResponse:
        # Prefill makes one token, as the stock engine.
        asked = body.get("max_completion_tokens") or body.get("max_tokens") or _sampling(body) or 8
        count = 1 if self._identity.told.role == "prefill" else min(int(asked), _MOST_TOKENS)
        shape = _Shape(request.path, self._identity.told.model, rid)
        if not body.get("stream"):
            await asyncio.sleep(self._switches.token_s * count)
            return web.json_response(shape.whole(count))
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for event in shape.events(count):
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            await asyncio.sleep(self._switches.token_s)
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    def _refusal(self, message: str, status: int) -> web.Response:
        kind = "BadRequest" if status < 500 else "InternalServerError"
        told = {"object": "error", "message": message, "type": kind, "param": None, "code": status}
        return web.json_response(told, status=status)


class _Shape:
    """Answers of one route. Every token is the text " a"."""

    def __init__(self, path: str, model: str, rid: str) -> None:
        self._chat, self._generate = path.endswith("chat/completions"), path == "/generate"
        kind = "chat.completion" if self._chat else "text_completion"
        self._head = {"id": rid, "object": kind, "created": int(time.time()), "model": model}

    def whole(self, count: int) -> dict[str, Any]:
        """An answer that is not streamed."""
        text = " a" * count
        if self._generate:
            return {"text": text, "output_ids": [1] * count, "meta_info": self._meta(count, last=True)}
        said: dict[str, Any] = {"message": {"role": "assistant", "content": text}}
        choice = {"index": 0, "finish_reason": "length", **(said if self._chat else {"text": text})}
        usage = {"prompt_tokens": 3, "completion_tokens": count, "total_tokens": 3 + count}
        return {**self._head, "choices": [choice], "usage": usage}

    def events(self, count: int) -> Iterator[dict[str, Any]]:
        """A streamed one, a token each."""
        for number in range(1, count + 1):
            last = number == count
            if self._generate:
                yield {"text": " a" * number, "meta_info": self._meta(number, last=last)}
                continue
            said: dict[str, Any] = {"delta": {"content": " a"}} if self._chat else {"text": " a"}
            choice = {"index": 0, "finish_reason": "length" if last else None, **said}
            kind = {"object": "chat.completion.chunk"} if self._chat else {}
            yield {**self._head, **kind, "choices": [choice]}

    def _meta(self, count: int, *, last: bool) -> dict[str, Any]:
        reason = {"type": "length", "length": count} if last else None
        return {"id": self._head["id"], "finish_reason": reason, "completion_tokens": count}


def _sampling(body: dict[str, Any]) -> int | None:
    told = body.get("sampling_params") or {}
    return told.get("max_new_tokens") if isinstance(told, dict) else None
