"""The two questions of a watcher to the API server: a whole list in pages, and what changes from there on."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final, NamedTuple

import aiohttp
import orjson

from plait_operator.apply.connection import Connection
from plait_operator.apply.errors import ApiError, ApplyError, UnreachableError, api_error
from plait_operator.apply.kinds import Kind
from plait_operator.observed import Manifest

_PAGE: Final = 50
"""Of a list. As Python objects a page takes several times its JSON, and memory once taken stays taken."""
# etcd takes no object of more than 1.5 MiB; escaped in JSON it may be longer.
_LINE: Final = 8 << 20


class WatchEvent(NamedTuple):
    """`type`: ADDED, MODIFIED, DELETED or BOOKMARK. `version`: what the watch has reached with it."""

    type: str
    thing: Manifest
    version: int


class Page(NamedTuple):
    """A part of a list. `version`: of the whole list's state, the same on every page."""

    items: list[Manifest]
    version: int


class GoneError(ApplyError):
    """The watch is too far behind: only a new list helps."""


class Watcher:
    """Lists and watches over one pool of connections. Belongs to one event loop.

    `timeout_s`: for a page of a list, and for a watch to begin. `silence_s`: a watch that tells nothing for
    so long, not even a bookmark, may be a dead one, and is ended.
    """

    def __init__(self, connection: Connection, *, timeout_s: float = 30.0, silence_s: float = 90.0) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._silence_s = silence_s
        self._session: aiohttp.ClientSession | None = None
        self._tls: ssl.SSLContext | bool | None = None

    async def pages(self, path: str, *, selector: str = "") -> AsyncGenerator[Page, None]:
        """All objects, page by page, and the version of this state. Raises ApplyError."""
        more, version = "", 0
        while True:
            query = {"limit": str(_PAGE)} | ({"labelSelector": selector} if selector else {})
            if more:
                query["continue"] = more
            try:
                async with asyncio.timeout(self._timeout_s), self._get(path, query) as answer:
                    page = _json(await answer.read(), path)
            except TimeoutError:
                raise UnreachableError(f"list {path}: no answer within {self._timeout_s:g} s") from None
            meta = page.get("metadata") or {}
            version = version or int(meta.get("resourceVersion") or 0)
            yield Page(page.get("items") or [], version)
            more = meta.get("continue") or ""
            if not more:
                return

    async def events(
        self, path: str, *, selector: str, version: int, seconds: int
    ) -> AsyncGenerator[WatchEvent, None]:
        """What changes after `version`, for `seconds` or until it falls silent.

        Raises GoneError, ApplyError.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(version),
            "timeoutSeconds": str(seconds),
        } | ({"labelSelector": selector} if selector else {})
        async with contextlib.AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(self._timeout_s):
                    answer = await stack.enter_async_context(self._get(path, query))
            except TimeoutError:
                raise UnreachableError(f"watch {path}: no answer within {self._timeout_s:g} s") from None
            while True:
                try:
                    async with asyncio.timeout(self._silence_s):
                        line = await answer.content.readline(max_line_length=_LINE)
                except TimeoutError:
                    # Quiet kinds get no bookmarks either: a new watch costs little, a dead one much.
                    return
                except (aiohttp.ClientError, OSError) as error:
                    raise UnreachableError(f"watch {path}: the connection broke: {error}") from None
                except aiohttp.http_exceptions.LineTooLong:
                    raise UnreachableError(f"watch {path}: a line of over {_LINE} bytes") from None
                if not line:
                    return
                if line.strip():
                    yield _event(line, path)

    async def read(self, path: str) -> Manifest:
        """One object. Raises ApplyError."""
        try:
            async with asyncio.timeout(self._timeout_s), self._get(path, {}) as answer:
                return _json(await answer.read(), path)
        except TimeoutError:
            raise UnreachableError(f"get {path}: no answer within {self._timeout_s:g} s") from None

    async def close(self) -> None:
        """Drop the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def distrust(self) -> None:
        """After trouble: read the certificates again with the next connection."""
        self._tls = None

    @contextlib.asynccontextmanager
    async def _get(self, path: str, query: dict[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            if self._tls is None:
                self._tls = self._connection.tls()
            headers = {"Accept": "application/json", "User-Agent": "plait-operator"}
            headers |= self._connection.headers()
            url = self._connection.server + path
            async with self._open().get(
                url, params=query, headers=headers, ssl=self._tls, allow_redirects=False
            ) as answer:
                if answer.status != 200:
                    body = await answer.content.read(1 << 16)
                    raise api_error(answer.status, body, answer.headers.get("Retry-After"))
                yield answer
        except (aiohttp.ClientError, OSError) as error:
            self.distrust()
            raise UnreachableError(f"{path}: {error or type(error).__name__}") from None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            # No limit: every watch holds a connection for minutes. Deadlines are set around whole questions.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=30),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0),
                read_bufsize=1 << 16,
            )
        return self._session


def whole(kind: Kind, thing: Manifest) -> Manifest:
    """An item of a list, which does not say what it is."""
    thing.setdefault("apiVersion", kind.api_version)
    thing.setdefault("kind", kind.kind)
    return thing


def _event(line: bytes, path: str) -> WatchEvent:
    told = _json(line, path)
    kind, thing = str(told.get("type")), told.get("object") or {}
    if kind == "ERROR":
        code, message = int(thing.get("code") or 500), str(thing.get("message") or "no message")
        if code == 410:
            raise GoneError(f"watch {path}: {message}")
        raise ApiError(code, str(thing.get("reason") or ""), message)
    version = (thing.get("metadata") or {}).get("resourceVersion")
    if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK") or not version:
        raise UnreachableError(f"watch {path}: an event of type {kind!r} that means nothing here")
    return WatchEvent(kind, thing, int(version))


def _json(data: bytes, path: str) -> dict[str, Any]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise UnreachableError(f"{path}: the answer is no JSON object: is this a Kubernetes API server?")
    return value
