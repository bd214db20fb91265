"""Seen from outside: from the moment an edit is sent until a watch shows the child that it asked to change.

Longer than the operator's own figure by the edit's own way to the API server, and by both watches.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any, Final

import httpx
from tests.cluster.harness.api import Api, path
from tests.cluster.harness.instance import Instance

from plait_operator.controller.informer import SELECTOR
from plait_operator.names import INSTANCE, ROLE

TURN: Final = "test.plait.dev/turn"
_WATCHED: Final = (("v1", "Service"), ("apps/v1", "Deployment"))
Json = dict[str, Any]
_Sought = tuple[str, str, str, str]


class Outside:
    """Watches from `start` on. Thread safe."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._lock = threading.Lock()
        self._sought: dict[_Sought, float] = {}
        self._found: list[tuple[str, float]] = []
        self._stop = threading.Event()
        self.events = 0

    def start(self) -> None:
        for version, kind in _WATCHED:
            threading.Thread(target=self._follow, args=(version, kind), daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def expect(self, kind: str, namespace: str, name: str, mark: str) -> None:
        """An edit that is about to be sent: the child of this kind will carry `mark`."""
        with self._lock:
            self._sought[kind, namespace, name, mark] = time.monotonic()

    def take(self) -> dict[str, list[float]]:
        """Seconds it took each edit that was answered since the last call, by kind, in order of length."""
        with self._lock:
            found, self._found = self._found, []
        told: dict[str, list[float]] = {}
        for kind, seconds in found:
            told.setdefault(kind, []).append(seconds)
        return {kind: sorted(seconds) for kind, seconds in sorted(told.items())}

    def late(self, *, after: float) -> list[_Sought]:
        """Edits that nothing has answered within so many seconds."""
        now = time.monotonic()
        with self._lock:
            return [edit for edit, at in self._sought.items() if now - at > after]

    def _follow(self, version: str, kind: str) -> None:
        api, since = Api(self._instance), ""
        while not self._stop.is_set():
            with contextlib.suppress(httpx.HTTPError):
                since = since or api.raw("GET", path(version, kind), limit="1")["metadata"]["resourceVersion"]
                for event, thing in api.watch(version, kind, seconds=600, since=since, selector=SELECTOR):
                    if self._stop.is_set():
                        return
                    since = "" if event == "ERROR" else thing["metadata"]["resourceVersion"]
                    if event != "ERROR":
                        self._look(thing)

    def _look(self, thing: Json) -> None:
        now = time.monotonic()
        meta = thing["metadata"]
        labels = meta.get("labels") or {}
        at = (meta["namespace"], labels.get(INSTANCE, ""))
        if thing["kind"] == "Service":
            seen = ("service", *at, (meta.get("annotations") or {}).get(TURN, ""))
        elif labels.get(ROLE) == "router":
            seen = ("scale", *at, f"routers {thing['spec']['replicas']}")
        else:
            told = thing["spec"]["template"]["metadata"].get("annotations") or {}
            seen = ("roll", *at, told.get(TURN, ""))
        with self._lock:
            self.events += 1
            began = self._sought.pop(seen, None)
            if began is not None:
                self._found.append((seen[0], now - began))
