"""What serves, watched all the time: how low it went while a test did its worst."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from tests.cluster.harness.api import Api
from tests.cluster.harness.instance import Instance

from plait_operator.names import ADMITTED_GATE, INSTANCE, ROLE, WIRE_HASH

ROLES = ("prefill", "decode")


class Capacity:
    """Follows the engine pods of one deployment by a watch of its own, from `start` to `stop`.

    A pod serves while it is ready, is not being deleted, and the other role has such a pod of its wire hash.
    `gated`: ready means Ready, gate and all; without routers nobody opens gates, and ready containers count.
    `least` and `most` are of the moments since `arm`: serving pods, and all pods, of each role.
    """

    def __init__(self, instance: Instance, namespace: str, name: str, *, gated: bool) -> None:
        self._api = Api(instance)
        self._namespace = namespace
        self._name = name
        self._gated = gated
        self._pods: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._armed = False
        self.least: dict[str, int] = {}
        self.most: dict[str, int] = {}
        self.story: list[tuple[int, int]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(5)

    def arm(self) -> None:
        """From now on it counts."""
        with self._lock:
            self._armed = True
            self.least, self.most, self.story = {}, {}, []
            self._note()

    def serving(self) -> dict[str, int]:
        """Serving pods of each role now."""
        with self._lock:
            return self._serving()

    def _serving(self) -> dict[str, int]:
        ready = [p for p in self._pods.values() if self._ready(p)]
        wires = Counter((_label(p, ROLE), _label(p, WIRE_HASH)) for p in ready)
        other = {"prefill": "decode", "decode": "prefill"}
        return {
            r: sum(n for (role, wire), n in wires.items() if role == r and wires[other[r], wire])
            for r in ROLES
        }

    def _ready(self, pod: dict[str, Any]) -> bool:
        if pod["metadata"].get("deletionTimestamp"):
            return False
        told = {c["type"]: c["status"] for c in (pod.get("status") or {}).get("conditions") or []}
        if self._gated:
            return told.get("Ready") == "True" and told.get(ADMITTED_GATE) == "True"
        return told.get("ContainersReady") == "True"

    def _note(self) -> None:
        if not self._armed:
            return
        serving = self._serving()
        there = Counter(_label(p, ROLE) for p in self._pods.values())
        for role in ROLES:
            self.least[role] = min(self.least.get(role, serving[role]), serving[role])
            self.most[role] = max(self.most.get(role, 0), there[role])
        self.story.append((serving["prefill"], serving["decode"]))

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._follow()
            except Exception:  # the API server is one of the things that tests take away
                self._stop.wait(0.2)

    def _follow(self) -> None:
        selector = f"{INSTANCE}={self._name}"
        where = f"/api/v1/namespaces/{self._namespace}/pods"
        listed = self._api.raw("GET", where, labelSelector=selector)
        with self._lock:
            self._pods = {p["metadata"]["name"]: p for p in listed["items"]}
            self._note()
        since = listed["metadata"]["resourceVersion"]
        for kind, pod in self._api.watch("v1", "Pod", self._namespace, seconds=5, since=since):
            if self._stop.is_set() or kind == "ERROR":
                return
            if _label(pod, INSTANCE) != self._name:
                continue
            with self._lock:
                if kind == "DELETED":
                    self._pods.pop(pod["metadata"]["name"], None)
                else:
                    self._pods[pod["metadata"]["name"]] = pod
                self._note()


def _label(pod: dict[str, Any], name: str) -> str:
    return str((pod["metadata"].get("labels") or {}).get(name, ""))
