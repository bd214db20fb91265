"""What is known of the pods: changed by lists and watch events, read as a list of targets. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, NamedTuple

from plait.router.discovery.kubernetes.rules import Pod, PodRules, Skipped, pod_target
from plait.router.discovery.target import Target, Targets
from plait.router.pairing import Side


class EventKind(StrEnum):
    """Kinds of watch events that change or confirm the cache; ERROR never gets this far."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


class Event(NamedTuple):
    """One event of a watch. `version`: the resource version that the cache is at once it is applied."""

    kind: EventKind
    object: dict[str, Any]
    version: str


class Entry(NamedTuple):
    """What is kept of a pod: the pod itself is a hundred times as big."""

    name: str
    uid: str
    started: str
    outcome: Target | Skipped


def entry(pod: Pod, rules: PodRules) -> Entry:
    """The entry of this pod now."""
    metadata, status = pod.get("metadata") or {}, pod.get("status") or {}
    started = str(status.get("startTime") or metadata.get("creationTimestamp") or "")
    return Entry(str(metadata.get("name")), str(metadata.get("uid")), started, pod_target(pod, rules))


class Cache:
    """The pods of one namespace, by name. `version` is where a watch has to go on, empty before a list."""

    def __init__(self, rules: PodRules) -> None:
        self._rules = rules
        self._entries: dict[str, Entry] = {}
        self.version = ""

    def replace(self, entries: Iterable[Entry], version: str) -> int:
        """Take a whole list. Returns how many pods were still known that are gone: deletes that were lost."""
        fresh = {e.name: e for e in entries}
        lost = sum(name not in fresh or fresh[name].uid != e.uid for name, e in self._entries.items())
        self._entries, self.version = fresh, version
        return lost

    def apply(self, event: Event) -> None:
        """Take one event of a watch that started at `version`."""
        if event.kind in (EventKind.ADDED, EventKind.MODIFIED):
            new = entry(event.object, self._rules)
            self._entries[new.name] = new
        elif event.kind is EventKind.DELETED:
            # A pod that left the selection is told as deleted too.
            gone = entry(event.object, self._rules)
            known = self._entries.get(gone.name)
            if known is not None and known.uid == gone.uid:
                del self._entries[gone.name]
        self.version = event.version

    def targets(self) -> Targets:
        """All targets, prefill first, by address."""
        return tuple(sorted(self._by_address().values(), key=lambda t: (t.side is Side.DECODE, t.url)))

    def skipped(self) -> dict[str, Skipped]:
        """Pods that are no targets, by name."""
        chosen = set(self._by_address().values())
        reasons: dict[str, Skipped] = {}
        for name, known in sorted(self._entries.items()):
            if isinstance(known.outcome, Skipped):
                reasons[name] = known.outcome
            elif known.outcome not in chosen:
                reasons[name] = Skipped(f"a newer pod has its address {known.outcome.url}")
        return reasons

    def _by_address(self) -> dict[str, Target]:
        """One target an address: the pod's that started last, for only leftovers can have had it before."""
        found: dict[str, tuple[tuple[str, str], Target]] = {}
        for known in self._entries.values():
            if isinstance(known.outcome, Skipped):
                continue
            # The API server's times order like text; the uid makes a tie come out the same always.
            rank = (known.started, known.uid)
            url = known.outcome.url
            if url not in found or rank > found[url][0]:
                found[url] = (rank, known.outcome)
        return {url: target for url, (_, target) in found.items()}
