"""Kubernetes Events on a deployment, the same one told again counted and not written anew."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from typing import Final, NamedTuple

from plait_operator.actions import Event
from plait_operator.api.base import API_VERSION
from plait_operator.apply.client import Request
from plait_operator.apply.kinds import DEPLOYMENT, EVENT
from plait_operator.apply.writes import Target
from plait_operator.names import MANAGER
from plait_operator.observed import Manifest

SAME_WITHIN_S: Final = 600.0
"""The same event within this time becomes a count on the first."""
QUIET_S: Final = 60.0
"""A count is written at most this often."""
_REMEMBERED: Final = 4096
_BURST: Final = 25
_REFILL_S: Final = 12.0
"""A deployment that tells more than this is a fault, and must not fill etcd: one more every 12 s."""


class _Told(NamedTuple):
    name: str
    first: float
    written: float
    times: int


class Recorder:
    """Decides what to send. Thread safe; `instance`: of this process, for the events' reportingInstance."""

    def __init__(self, instance: str) -> None:
        self._instance = instance
        self._told: OrderedDict[str, _Told] = OrderedDict()
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def request(self, event: Event, target: Target, *, clock: float, now: str) -> Request | None:
        """None: nothing to send now. `clock`: seconds of any steady clock; `now`: RFC 3339 with fractions."""
        key = hashlib.sha256("\0".join((target.uid, *event)).encode()).hexdigest()[:16]
        with self._lock:
            told = self._told.get(key)
            if told is not None and clock - told.first < SAME_WITHIN_S:
                counted = told._replace(times=told.times + 1)
                due = clock - told.written >= QUIET_S
                self._told[key] = counted._replace(written=clock) if due else counted
                return _again(counted, target, now=now) if due else None
            if not self._allowed(target.uid, clock):
                return None
            # The time makes the name new for each series: that of an earlier one may still be there.
            name = f"{target.name[:200]}.{key}.{int(clock * 1000):x}"
            self._told[key] = _Told(name, clock, clock, 1)
            self._told.move_to_end(key)
            while len(self._told) > _REMEMBERED:
                self._told.popitem(last=False)
        return self._first(event, target, name=name, now=now)

    def _allowed(self, uid: str, clock: float) -> bool:
        left, since = self._spent.pop(uid, (float(_BURST), clock))
        left = min(float(_BURST), left + (clock - since) / _REFILL_S)
        allowed = left >= 1
        self._spent[uid] = (left - 1 if allowed else left, clock)
        while len(self._spent) > _REMEMBERED:
            self._spent.popitem(last=False)
        return allowed

    def _first(self, event: Event, target: Target, *, name: str, now: str) -> Request:
        body: Manifest = {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.kind,
            "metadata": {"name": name, "namespace": target.namespace},
            "eventTime": now,
            "type": event.kind,
            "reason": event.reason[:128],
            "action": "Reconcile",
            # 1,024 bytes are allowed, not characters.
            "note": event.message.encode()[:1000].decode(errors="ignore"),
            "reportingController": MANAGER,
            "reportingInstance": self._instance[:128],
            "regarding": {
                "apiVersion": API_VERSION,
                "kind": DEPLOYMENT.kind,
                "name": target.name,
                "namespace": target.namespace,
                "uid": target.uid,
            },
        }
        return Request("POST", EVENT.path(target.namespace), EVENT.kind, "event", body=body)


def _again(told: _Told, target: Target, *, now: str) -> Request:
    body: Manifest = {"series": {"count": max(2, told.times), "lastObservedTime": now}}
    path = EVENT.path(target.namespace, told.name)
    return Request("PATCH", path, EVENT.kind, "event", (), "application/merge-patch+json", body)
