"""As much of a Kubernetes API server as pods need, with the faults that real ones have."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

Json = dict[str, Any]


def pod(name: str, role: str = "decode", *, ip: str = "10.0.0.1", ready: bool = True, **more: Any) -> Json:
    """A pod as the API server tells it, with one container; `more`: uid, restarts, phase, labels."""
    ports = [{"name": "http", "containerPort": 30000}]
    if role == "prefill":
        ports.append({"name": "bootstrap", "containerPort": 8998})
    status = "True" if ready else "False"
    return {
        "metadata": {
            "name": name,
            "uid": more.get("uid", f"uid-{name}"),
            "creationTimestamp": more.get("created", "2026-01-01T00:00:00Z"),
            "labels": {"plait.dev/role": role, **more.get("labels", {})},
        },
        "spec": {"containers": [{"name": "engine", "ports": ports}]},
        "status": {
            "phase": more.get("phase", "Running"),
            "podIP": ip,
            "startTime": more.get("created", "2026-01-01T00:00:00Z"),
            "conditions": [{"type": kind, "status": status} for kind in ("ContainersReady", "Ready")],
            "containerStatuses": [{"name": "engine", "restartCount": more.get("restarts", 0)}],
        },
    }


class FakeApiServer:
    """Holds pods, tells of changes, and misbehaves as it is told to.

    `refuse`: verb -> (status, body) that it answers with. `stall`: watches begin and then stay silent, past
    their end. `stall_lists`: lists get no answer. `end_at_once`: watches end right after they began.
    `gone_by_status`: 410 as the answer's status instead of an event in the stream. `tokens`: those that it
    accepts, all where empty.
    """

    def __init__(self) -> None:
        self.pods: dict[str, Json] = {}
        self.version = 100
        self.refuse: dict[str, tuple[int, str]] = {}
        self.headers: dict[str, str] = {}
        self.stall = False
        self.stall_lists = False
        self.end_at_once = False
        self.gone_by_status = False
        self.tokens: set[str] = set()
        self.requests: list[Mapping[str, str]] = []
        self.authorizations: list[str] = []
        self.peers: list[int] = []
        self.page = 500
        self.port = 0
        self._oldest = 0
        self._history: list[tuple[int, str, Json]] = []
        self._changed = asyncio.Event()
        self._raw: list[bytes] = []
        self._watches: dict[asyncio.Task[Any], asyncio.Transport] = {}
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def lists(self) -> int:
        return sum("watch" not in r for r in self.requests)

    @property
    def watches(self) -> list[Mapping[str, str]]:
        return [r for r in self.requests if "watch" in r]

    @property
    def watching(self) -> int:
        """Watches whose connections are open now."""
        return sum(not transport.is_closing() for transport in self._watches.values())

    async def start(self) -> FakeApiServer:
        """Listen, at the same port as before if there was one."""
        app = web.Application()
        app.router.add_get("/api/v1/namespaces/pool/pods", self._pods)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def stop(self) -> None:
        self.cut()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def put(self, new: Json, *, tell: bool = True) -> None:
        """Add or change a pod."""
        kind = "MODIFIED" if new["metadata"]["name"] in self.pods else "ADDED"
        self.pods[new["metadata"]["name"]] = new
        self._note(kind, new, tell)

    def delete(self, name: str, *, tell: bool = True) -> None:
        """Remove a pod; without `tell`, watches never hear of it."""
        self._note("DELETED", self.pods.pop(name), tell)

    def bookmark(self) -> None:
        self._note("BOOKMARK", {"kind": "Pod", "metadata": {}}, True)

    def send(self, raw: bytes) -> None:
        """Put `raw` into the stream of the watches that are open."""
        self._raw.append(raw)
        self._wake()

    def compact(self) -> None:
        """Forget all history: who wants to go on from before gets a 410."""
        self._oldest = self.version
        self._history.clear()
        self._wake()

    def cut(self) -> None:
        """Break the connections of all watches in the middle."""
        for task, transport in list(self._watches.items()):
            transport.abort()
            task.cancel()

    def _note(self, kind: str, thing: Json, tell: bool) -> None:
        self.version += 1
        thing["metadata"]["resourceVersion"] = str(self.version)
        if tell:
            self._history.append((self.version, kind, json.loads(json.dumps(thing))))
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _pods(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        self.requests.append(query)
        self.peers.append(request.transport.get_extra_info("peername")[1] if request.transport else 0)
        token = request.headers.get("authorization", "")
        self.authorizations.append(token)
        if self.tokens and token.removeprefix("Bearer ") not in self.tokens:
            return self._status(401, "Unauthorized")
        verb = "watch" if "watch" in query else "list"
        if verb in self.refuse:
            return self._status(*self.refuse[verb])
        if verb == "watch":
            return await self._watch(request, query)
        if self.stall_lists:
            await asyncio.sleep(3600)
        return self._list(query)

    def _status(self, code: int, message: str) -> web.Response:
        body = {"kind": "Status", "code": code, "message": message} if message[:1] != "<" else message
        text = body if isinstance(body, str) else json.dumps(body)
        return web.Response(status=code, text=text, headers=self.headers)

    def _list(self, query: Mapping[str, str]) -> web.Response:
        start, version = 0, str(self.version)
        if "continue" in query:
            mark, _, version = query["continue"].partition("@")
            start = int(mark)
            if int(version) < self._oldest:
                return self._status(410, "The provided continue parameter is too old")
        size = min(int(query["limit"]), self.page)
        names = sorted(n for n, p in self.pods.items() if _selected(p, query["labelSelector"]))
        more = {"continue": f"{start + size}@{version}"} if len(names) > start + size else {}
        items = [self.pods[name] for name in names[start : start + size]]
        return web.json_response({"metadata": {"resourceVersion": version, **more}, "items": items})

    async def _watch(self, request: web.Request, query: Mapping[str, str]) -> web.StreamResponse:
        at = int(query["resourceVersion"])
        if at < self._oldest and self.gone_by_status:
            return self._status(410, "too old resource version")
        response = web.StreamResponse(headers={"content-type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        task, transport = asyncio.current_task(), request.transport
        assert task is not None
        assert isinstance(transport, asyncio.Transport)
        self._watches[task] = transport
        # Counted before anyone can see that the watch is open, and send something.
        raw = len(self._raw)
        try:
            if self.stall:
                await asyncio.sleep(3600)
            if not self.end_at_once:
                await asyncio.wait_for(self._tell(response, at, raw, query), int(query["timeoutSeconds"]))
        except TimeoutError:
            pass
        finally:
            del self._watches[task]
        return response

    async def _tell(self, response: web.StreamResponse, at: int, raw: int, query: Mapping[str, str]) -> None:
        while True:
            changed = self._changed
            if at < self._oldest:
                gone = {
                    "kind": "Status",
                    "code": 410,
                    "reason": "Expired",
                    "message": "too old resource version",
                }
                await response.write(_line("ERROR", gone))
                return
            for version, kind, thing in list(self._history):
                if version > at and (kind == "BOOKMARK" or _selected(thing, query["labelSelector"])):
                    await response.write(_line(kind, thing))
                at = max(at, version)
            for piece in self._raw[raw:]:
                await response.write(piece)
            raw = len(self._raw)
            await changed.wait()


def _line(kind: str, thing: Json) -> bytes:
    return json.dumps({"type": kind, "object": thing}).encode() + b"\n"


def _selected(thing: Json, selector: str) -> bool:
    """Whether the pod matches a selector of `key=value` and `key in (a,b)` terms."""
    labels = thing["metadata"].get("labels", {})
    for term in _terms(selector):
        key, is_in, values = term.partition(" in ")
        if is_in:
            if labels.get(key) not in values.strip("()").split(","):
                return False
        elif labels.get(term.partition("=")[0]) != term.partition("=")[2]:
            return False
    return True


def _terms(selector: str) -> list[str]:
    terms, depth, current = [], 0, ""
    for char in selector:
        depth += (char == "(") - (char == ")")
        if char == "," and not depth:
            terms.append(current)
            current = ""
        else:
            current += char
    return [*terms, current]
