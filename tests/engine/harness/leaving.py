"""A client that leaves in the middle, and what both engines still hold after it."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from harness.engines import Engine


class Client:
    """One request on a connection of its own, sent when it is made."""

    def __init__(self, url: str, path: str, body: dict[str, Any]) -> None:
        at = urlsplit(url)
        assert at.hostname is not None
        self._connection = http.client.HTTPConnection(at.hostname, at.port, timeout=120)
        self._connection.request(
            "POST", path, body=json.dumps(body), headers={"content-type": "application/json"}
        )
        sock = self._connection.sock
        assert sock is not None
        self._socket: socket.socket = sock
        self._answer: http.client.HTTPResponse | None = None

    @property
    def answer(self) -> http.client.HTTPResponse:
        """The answer, once its head is there."""
        if self._answer is None:
            self._answer = self._connection.getresponse()
        return self._answer

    def events(self, count: int) -> list[bytes]:
        """The next `count` events of a stream."""
        found = []
        while len(found) < count:
            line = self.answer.readline()
            assert line, f"the stream ended after {found}"
            if line.startswith(b"data:"):
                found.append(line[5:].strip())
        return found

    def leave(self) -> None:
        """Close the connection, as a client does that is no longer interested."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        if self._answer is not None:
            self._answer.close()


def until(condition: Callable[[], bool], *, within_s: float, what: str) -> None:
    """Return once `condition()` holds; AssertionError with `what` where it does not in `within_s` seconds."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}, in {within_s:g} s"
        time.sleep(0.02)


def seconds_to_free(prefill: Engine, decode: Engine, *, within_s: float) -> float:
    """Seconds until neither engine holds a request, or a page for one; prefill's accounts must then be right.

    Pages of the radix tree are nobody's request: they are prefill's cache, to be evicted at will. Decode
    keeps no cache here, so all its pages have to be free. AssertionError after `within_s` seconds.
    """
    began = time.monotonic()
    while still := held(prefill) + held(decode):
        assert time.monotonic() - began < within_s, f"held after {within_s:g} s: {still}"
    took = time.monotonic() - began
    owned = sum(rank["pages"]["owned"] for rank in prefill.status()["ranks"])
    for rank in prefill.account():
        assert rank["faults"] == []
        assert rank["requests"] == 0
        assert rank["free"] + rank["tree"] == owned
    return took


def held(engine: Engine) -> list[str]:
    """What requests hold of the engine, in words, from figures not older than this call."""
    decode = engine.status()["role"] == "decode"
    found = []
    for rank in engine.ranks():
        pages = rank["pages"]["used" if decode else "in_flight"]
        if pages or rank["running"] or rank["queued"]:
            found.append(
                f"{engine.name} rank {rank['rank']}: {pages} pages, {rank['running']} running, "
                f"{rank['queued']} queued"
            )
    return found
