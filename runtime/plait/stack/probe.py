"""Is a child ready? Asked from outside, by what it answers and what it logs."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

_TIMEOUT_S = 1.0


class Probe(NamedTuple):
    """What makes a child ready: `url` answers 200, its JSON lists at least `ranks` ranks (0: not asked),
    and its log holds `marker` (empty: not asked)."""

    url: str
    ranks: int = 0
    marker: str = ""


class Readiness(NamedTuple):
    """`ready`, and in a few words what is there or still missing."""

    ready: bool
    note: str


class Answer(NamedTuple):
    """`status` 0: nobody answered."""

    status: int
    body: bytes


def ask(url: str, *, timeout_s: float = _TIMEOUT_S) -> Answer:
    """GET `url` (http only, no proxy); never raises for a server that is not there or answers nonsense."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.request("GET", parts.path or "/")
        response = connection.getresponse()
        return Answer(response.status, response.read())
    except (OSError, http.client.HTTPException):
        return Answer(0, b"")
    finally:
        connection.close()


class LogWatch:
    """Looks for a marker in a growing log, reading each byte once."""

    def __init__(self, path: Path, marker: str) -> None:
        self._path, self._marker = path, marker.encode()
        self._offset, self._carry = 0, b""
        self._seen = not marker

    def seen(self) -> bool:
        """Whether the marker has appeared by now."""
        if self._seen or not self._path.exists():
            return self._seen
        with self._path.open("rb") as log:
            log.seek(self._offset)
            fresh = log.read()
        self._offset += len(fresh)
        text = self._carry + fresh
        self._seen = self._marker in text
        self._carry = text[-len(self._marker) :]
        return self._seen


def _ranks(body: bytes) -> int:
    try:
        return len(json.loads(body)["ranks"])
    except (ValueError, KeyError, TypeError):
        return 0


def check(probe: Probe, log: LogWatch) -> Readiness:
    """One look at a child; takes at most about a second."""
    if not log.seen():
        return Readiness(False, "loading")
    answer = ask(probe.url)
    path = urlsplit(probe.url).path
    if answer.status != 200:
        return Readiness(
            False, f"{path} answers {answer.status}" if answer.status else f"no answer on {path}"
        )
    if probe.ranks and (ranks := _ranks(answer.body)) < probe.ranks:
        return Readiness(False, f"{ranks} of {probe.ranks} ranks report")
    return Readiness(True, "ready")


def tail(path: Path, lines: int) -> list[str]:
    """The last `lines` non-empty lines of a log; empty when there is none."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, 2)
            log.seek(max(0, size - 65536))
            text = log.read().decode("utf-8", "replace")
    except OSError:
        return []
    # Progress bars overwrite their line: only what was left standing counts.
    kept = [line.rpartition("\r")[2] for line in text.rstrip("\r\n").split("\n")]
    return [line for line in kept if line.strip()][-lines:]
