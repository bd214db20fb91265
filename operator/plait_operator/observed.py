"""What is known of one deployment's surroundings at one moment. Plain values; nothing here asks anybody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Manifest = dict[str, Any]
"""A Kubernetes object as JSON."""


class Ref(NamedTuple):
    """Names one object. `kind` is enough: no two kinds used here share a name."""

    api_version: str
    kind: str
    name: str

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> Ref:
        """Of a manifest."""
        return cls(manifest["apiVersion"], manifest["kind"], manifest["metadata"]["name"])


class PodFact(NamedTuple):
    """One engine or router pod, reduced to what plans look at.

    `phase`: as the API server has it. `ready`: its Ready condition. `containers_ready`: ContainersReady,
    which does not wait for the router's gate. `admitted`: the router's gate, None while it was never set.
    `unschedulable`, `waiting`: why it does not start (empty: it does); `waiting` holds the waiting reason
    and message of its containers (ImagePullBackOff, CrashLoopBackOff …), `restarts` their restarts.
    `preflight`: termination message of the preflight container, empty until it ended; `preflight_failed`:
    it ended with another code than 0. `terminated`: message of a main container that ended, for the Job.
    """

    name: str
    uid: str
    role: str
    revision: str
    ip: str = ""
    node: str = ""
    phase: str = ""
    ready: bool = False
    containers_ready: bool = False
    admitted: bool | None = None
    deleting: bool = False
    unschedulable: str = ""
    waiting: str = ""
    restarts: int = 0
    preflight: str = ""
    preflight_failed: bool = False
    terminated: str = ""
    ready_since: str = ""
    created: str = ""
    group: str = ""
    """Of a LeaderWorkerSet: which group, and which pod of it (0: the leader)."""
    worker: int = 0


class EngineFact(NamedTuple):
    """What one router says about one engine pod. `identity` begins with the pod's uid.

    `taken_in`: the router knows this process, reaches it and does not drain it. `pairs`: it has a partner
    with an equal wire hash and is in rotation.
    """

    identity: str
    taken_in: bool
    pairs: bool
    trouble: str = ""
    wire_hash: str = ""
    group_hash: str = ""
    tokens: int = 0
    tokens_replicated: int = 0
    in_flight: int = 0


class RouterFact(NamedTuple):
    """One router pod's answer. `age_s`: how old it is; `error`: why there is none, and no `engines`."""

    pod: str
    ready: bool
    age_s: float
    error: str = ""
    engines: tuple[EngineFact, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Observed:
    """All that a plan may look at.

    `children`: every object the operator owns for this deployment, by Ref, as the API server last told it
    (whole, with metadata and status; Pods are in `pods` instead). `apis`: optional kinds that the cluster
    serves ("ServiceMonitor", "PodMonitor", "LeaderWorkerSet"). `now`: UTC, RFC 3339 with seconds.
    `strays`: objects that carry this deployment's labels, and that nobody owns.
    `refusals`: what the API server said to the last attempt at an action, by Ref (quota, admission …).
    `fits`: a memo, to which a plan adds: digests of the manifests that `children`, just as they are here,
    were found to be as. It spares work, and changes nothing of what a plan says.
    """

    children: Mapping[Ref, Mapping[str, Any]] = field(default_factory=dict)
    strays: frozenset[Ref] = frozenset()
    pods: tuple[PodFact, ...] = ()
    routers: tuple[RouterFact, ...] = ()
    apis: frozenset[str] = frozenset()
    refusals: Mapping[Ref, str] = field(default_factory=dict)
    now: str = ""
    fits: dict[Ref, str] = field(default_factory=dict, compare=False, repr=False)
