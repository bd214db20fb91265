"""The two questions to the Kubernetes API server: all pods, and what changes from there on."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import orjson

from plait.router.config import ConfigError
from plait.router.discovery.kubernetes.access import Access
from plait.router.discovery.kubernetes.cache import Event, EventKind
from plait.router.discovery.kubernetes.errors import ApiError, CutError, GoneError, UnreachableError
from plait.router.discovery.kubernetes.lines import LineSplitter, LineTooLongError
from plait.router.discovery.kubernetes.refusals import refusal
from plait.router.discovery.kubernetes.rules import Pod

if TYPE_CHECKING:
    import aiohttp

T = TypeVar("T")

_KINDS: dict[str, EventKind] = {kind.value: kind for kind in EventKind}

# A page of whole pods is parsed at once: this many are about 1 MB of text and 6 MB of objects.
_PAGE = 100
# etcd takes no object of more than 1.5 MiB; escaped in JSON it may be longer.
_LINE_LIMIT = 8 << 20


class PodList(NamedTuple, Generic[T]):
    """Every pod, reduced to what the caller keeps of it, and the resource version of this state."""

    entries: list[T]
    version: str


class PodsApi:
    """List and watch of the selected pods. Everything that goes wrong is an ApiError.

    `timeout`: seconds for one list, and for a watch to begin. `reset` it after an error (the next request
    then gets a new connection, and trusts the CA file as it is by then) and at the end.
    """

    def __init__(self, access: Access, *, selector: str, timeout: float) -> None:
        self._access = access
        self._selector = selector
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None

    async def list_pods(self, keep: Callable[[Pod], T]) -> PodList[T]:
        """All pods, in pages; `keep` reduces each at once, so that never more than a page is held whole.

        Without a resource version in the request: the answer is not older than the question.
        """
        entries: list[T] = []
        token = ""
        async with self._deadline("list"):
            while True:
                params = {"limit": str(_PAGE), **({"continue": token} if token else {})}
                async with self._get("list", params) as response:
                    page = _json(await response.read(), "list")
                items, metadata = page.get("items"), _dict(page.get("metadata"))
                if not isinstance(items, list | type(None)) or not metadata.get("resourceVersion"):
                    raise ApiError(
                        "list pods: the answer is no list of pods: is this a Kubernetes API server?"
                    )
                entries += map(keep, items or ())
                token = metadata.get("continue") or ""
                if not token:
                    return PodList(entries, str(metadata["resourceVersion"]))

    async def watch_pods(
        self, version: str, *, seconds: int, began: Callable[[], None]
    ) -> AsyncGenerator[list[Event], None]:
        """Events after `version`, in batches as they come, until the server ends the watch after `seconds`.

        `began` is called when the server has agreed. Raises CutError when the stream breaks, GoneError when
        `version` is too old. Has no deadline of its own once it has begun: the caller sets one.
        """
        params = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(seconds),
        }
        async with contextlib.AsyncExitStack() as stack:
            async with self._deadline("watch"):
                response = await stack.enter_async_context(self._get("watch", params))
            began()
            lines = LineSplitter(limit=_LINE_LIMIT)
            pieces = aiter(response.content.iter_any())
            while (piece := await _next(pieces)) is not None:
                try:
                    found = lines.feed(piece)
                except LineTooLongError as error:
                    raise ApiError(f"watch pods: {error}") from None
                good, trouble = _events(found)
                if good:
                    yield good
                if trouble is not None:
                    raise trouble

    async def reset(self) -> None:
        """Drop the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @contextlib.asynccontextmanager
    async def _get(self, verb: str, params: dict[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        import aiohttp

        url = f"{self._access.server}/api/v1/namespaces/{self._access.namespace}/pods"
        query = {"labelSelector": self._selector, **params}
        try:
            async with self._open().get(
                url, params=query, headers=self._headers(), allow_redirects=False
            ) as response:
                if response.status != 200:
                    raise refusal(
                        verb,
                        self._access,
                        response.status,
                        dict(response.headers),
                        await response.content.read(4096),
                    )
                yield response
        except (aiohttp.ClientError, OSError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise UnreachableError(f"{verb} pods at {self._access.server}: {reason}") from None

    def _open(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None or self._session.closed:
            connector = aiohttp.TCPConnector(limit=2, ssl=self._tls())
            # Deadlines are set around whole questions: aiohttp's own would end a quiet watch.
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout)
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self._session

    def _tls(self) -> ssl.SSLContext | bool:
        if not self._access.server.startswith("https:"):
            return True
        try:
            return self._access.tls()
        except OSError as error:  # an SSLError is one too
            raise ApiError(f"the CA file {self._access.ca_file} cannot be used: {error}") from None

    def _headers(self) -> dict[str, str]:
        headers = {"accept": "application/json", "user-agent": "plait-router"}
        try:
            token = self._access.token()
        except (OSError, ConfigError) as error:
            raise ApiError(f"the token file {self._access.token_file} cannot be used: {error}") from None
        if token:
            headers["authorization"] = f"Bearer {token}"
        return headers

    @contextlib.asynccontextmanager
    async def _deadline(self, verb: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._timeout):
                yield
        except TimeoutError:
            raise UnreachableError(
                f"{verb} pods at {self._access.server}: no answer within {self._timeout:g} s"
            ) from None


async def _next(pieces: AsyncIterator[bytes]) -> bytes | None:
    """The next piece of a watch, None at its proper end."""
    import aiohttp

    try:
        return await anext(pieces, None)
    except (aiohttp.ClientError, OSError) as error:
        raise CutError(f"watch pods: the connection broke: {str(error) or type(error).__name__}") from None


def _events(lines: list[bytes]) -> tuple[list[Event], ApiError | None]:
    """The events before the first that is none, and what is the matter with that one."""
    good: list[Event] = []
    for line in lines:
        try:
            event = _json(line, "watch")
        except ApiError as error:
            return good, error
        kind, thing = str(event.get("type")), _dict(event.get("object"))
        if kind == "ERROR":
            return good, _told(thing)
        version = _dict(thing.get("metadata")).get("resourceVersion")
        if kind not in _KINDS or not version:
            return good, ApiError(f"watch pods: an event of type {kind!r} that means nothing here")
        good.append(Event(_KINDS[kind], thing, str(version)))
    return good, None


def _told(status: dict[str, Any]) -> ApiError:
    """The error that a watch tells in its stream, after it has begun with 200."""
    text = f"watch pods: the API server ended the watch: {status.get('message') or status.get('reason')}"
    return GoneError(text) if status.get("code") == 410 else ApiError(text)


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _json(data: bytes, verb: str) -> dict[str, Any]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise ApiError(f"{verb} pods: the answer is no JSON object: is this a Kubernetes API server?")
    return value
