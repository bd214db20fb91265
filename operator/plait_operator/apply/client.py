"""Requests to the API server through the official client: fenced, limited, timed, retried, counted."""

from __future__ import annotations

import json
import logging
import random
import time
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

import urllib3
from kubernetes.client import ApiClient
from kubernetes.client.exceptions import ApiException

from plait_operator.apply.connection import Connection
from plait_operator.apply.errors import ApiError, UnreachableError, api_error, short
from plait_operator.apply.fence import Fence
from plait_operator.apply.limit import Limiter
from plait_operator.apply.meters import Meters
from plait_operator.observed import Manifest

log = logging.getLogger("plait.operator.client")

_TRIES: Final = 3
_LONGEST_PAUSE: Final = 5.0
_CLOCKS_AGREE: Final = timedelta(seconds=2)


class Request(NamedTuple):
    """One request. `query` and `body` as they go out; `kind` and `verb`: for the metrics and the log."""

    method: str
    path: str
    kind: str
    verb: str
    query: tuple[tuple[str, str], ...] = ()
    content_type: str = "application/json"
    body: Manifest | list[Manifest] | None = None


class Client:
    """May be used by many threads at once.

    `timeout_s`: of one try. A write is told to the server with a shorter one, so that it is not done after
    this process has given up on it, and perhaps lost the right to write. `timeout_s` must therefore not be
    longer than the fence's own margin (see `controller.election`).
    """

    def __init__(
        self, connection: Connection, *, fence: Fence, limiter: Limiter, meters: Meters, timeout_s: float
    ) -> None:
        # The generated client carries no types.
        self._client: Any = ApiClient(connection.configuration)
        self._connection = connection
        self._fence = fence
        self._limiter = limiter
        self._meters = meters
        self._timeout_s = timeout_s
        self._ahead = timedelta()

    def read(self, path: str, *, kind: str) -> Manifest | None:
        """An object or a list; None when there is none. Raises ApplyError."""
        try:
            return self._tried(Request("GET", path, kind, "get"), fenced=False)
        except ApiError as error:
            if error.missing:
                return None
            raise

    def write(self, request: Request, *, fenced: bool = True) -> Manifest:
        """Send a write; the object as the server has it now. Raises ApplyError.

        `fenced` False: for the election itself, which decides about the fence.
        """
        try:
            done = self._tried(request, fenced=fenced)
        except ApiError as error:
            self._meters.writes.labels(request.kind, request.verb, str(error.status)).inc()
            raise
        except UnreachableError:
            self._meters.writes.labels(request.kind, request.verb, "unreachable").inc()
            raise
        self._meters.writes.labels(request.kind, request.verb, "done").inc()
        return done

    def now(self) -> datetime:
        """The time in UTC by the API server's clock, as its last answer told it.

        Plans compare times that the server wrote with the present. By this machine's own clock, set wrong, a
        drain of minutes would be over at once, or never.
        """
        return datetime.now(UTC) + self._ahead

    def close(self) -> None:
        """Drop the connections."""
        self._client.close()

    def _tried(self, request: Request, *, fenced: bool) -> Manifest:
        for left in range(_TRIES - 1, -1, -1):
            if fenced:
                self._limiter.take()
                # After the wait, not before: the right may have ended in the meantime.
                self._fence.check()
            try:
                return self._sent(request)
            except ApiError as error:
                if not error.passing or not left or not fenced:
                    raise
                pause = error.retry_after or 0.2 * 2 ** (_TRIES - 1 - left) * (0.5 + random.random())
                if pause > _LONGEST_PAUSE:
                    raise
                log.info("%s %s: %s: again in %.1f s", request.verb, request.path, error, pause)
                time.sleep(pause)
        raise AssertionError("the last try returns or raises")

    def _hear(self, date: str | None) -> None:
        found = ahead(date, datetime.now(UTC))
        if found is None:
            return
        if abs(found - self._ahead) > _CLOCKS_AGREE and found:
            log.warning(
                "the API server's clock is %.0f s ahead of this one: its time counts", found.total_seconds()
            )
        self._ahead = found

    def _sent(self, request: Request) -> Manifest:
        headers = {
            "Accept": "application/json",
            "User-Agent": "plait-operator",
            "Content-Type": request.content_type,
            **self._connection.headers(),
        }
        query = list(request.query)
        if request.method != "GET":
            query.append(("timeout", f"{max(1, int(self._timeout_s * 0.8))}s"))
        url = f"{self._connection.server}{request.path}" + (f"?{urlencode(query)}" if query else "")
        began = time.monotonic()
        try:
            answer = self._client.rest_client.request(
                request.method, url, headers=headers, body=request.body, _request_timeout=self._timeout_s
            )
            data: bytes = answer.read()
        except (urllib3.exceptions.HTTPError, ApiException, OSError) as error:
            raise UnreachableError(f"{request.method} {request.path}: {_words(error)}") from None
        finally:
            self._meters.request_seconds.labels(request.verb).observe(time.monotonic() - began)
        self._hear(answer.getheader("Date"))
        if not 200 <= answer.status < 300:
            raise api_error(answer.status, data, answer.getheader("Retry-After"))
        try:
            told: Any = json.loads(data)
        except ValueError:
            told = None
        if not isinstance(told, dict):
            raise UnreachableError(f"{request.method} {request.path}: the answer is no JSON object")
        return told


def ahead(date: str | None, now: datetime) -> timedelta | None:
    """How far the server's clock (its Date header) is ahead of `now`; None: it does not say.

    It tells whole seconds, and an answer takes a moment: what is within two is no difference.
    """
    try:
        told = parsedate_to_datetime(date or "")
    except ValueError:
        return None
    if told.tzinfo is None:
        return None
    difference = told - now
    return difference if abs(difference) > _CLOCKS_AGREE else timedelta()


def _words(error: Exception) -> str:
    return short(str(error.reason if isinstance(error, ApiException) else error)) or type(error).__name__
