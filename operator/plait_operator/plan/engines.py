"""The engines of a deployment as a rollout sees them, and as the status tells of them.

A Deployment's pods are engines; of a LeaderWorkerSet a whole group of pods is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from plait_operator import names
from plait_operator.api.reasons import Reason
from plait_operator.observed import Observed, PodFact, Ref
from plait_operator.plan.roles import OTHER, RevisionState, Role, RoleState
from plait_operator.status.inputs import RoleView
from plait_operator.status.problems import problems_of

WORKLOADS: Final = frozenset({"Deployment", "LeaderWorkerSet"})
_ENDED: Final = frozenset({"Failed", "Succeeded"})
"""Phases of pods that hold nothing any more; their workload has made others in their place."""
_PASSING: Final = frozenset({Reason.WAITING_FOR_ROUTERS})


class Workload(NamedTuple):
    """A workload of engines in the cluster. `deleting`: it is on its way out with all its pods."""

    ref: Ref
    uid: str
    revision: str
    wire: str
    replicas: int
    reported: int
    settled: bool
    deleting: bool
    ordered: bool
    size: int


class _Engine(NamedTuple):
    """One pod, or one group of pods. `number`: of the group."""

    number: int
    ready: bool
    deleting: bool
    failing: bool


def workloads_of(observed: Observed, role: str) -> dict[str, Workload]:
    """The engine workloads of a role, by revision."""
    found = {}
    for ref in observed.children:
        if ref.kind in WORKLOADS:
            live = observed.children[ref]
            labels = _labels(live)
            if labels.get(names.ROLE) == role and labels.get(names.REVISION):
                found[labels[names.REVISION]] = _workload(ref, live, labels)
    return dict(sorted(found.items()))


def role_state(
    observed: Observed, role: Role, *, deployment: str, target: str, wire: str, wanted: int, gated: bool
) -> RoleState:
    """One role for `rollout.step`. `wire`: hash digits of the target, as labels have them.

    `gated`: routers decide which pods are ready. Without any router nobody ever opens the gate, and pods
    count as ready when their containers are.
    """
    loads = workloads_of(observed, role)
    pods: dict[str, list[PodFact]] = {}
    for pod in observed.pods:
        if pod.role == role and pod.phase not in _ENDED:
            pods.setdefault(pod.revision, []).append(pod)
    told = []
    for revision in sorted({*loads, *pods} - {""}):
        load, own = loads.get(revision), pods.get(revision, [])
        trouble = _trouble(observed, deployment=deployment, role=role, revision=revision)
        told.append(
            _revision(
                revision,
                load,
                own,
                wire=wire if revision == target else _wire(observed, load, own, revision),
                trouble=trouble if load is not None else "",
                gated=gated,
            )
        )
    return RoleState(wanted=wanted, target=target, wire=wire, revisions=tuple(told))


def role_view(states: Mapping[Role, RoleState], role: Role) -> RoleView:
    """One role for the status, in engines."""
    state, other = states[role], states[OTHER[role]]
    paired = {one.wire for one in other.revisions if one.ready}
    new = next(one for one in state.revisions if one.revision == state.target)
    return RoleView(
        wanted=state.wanted,
        revision=state.target,
        pods=sum(one.pods for one in state.revisions),
        ready=sum(one.ready for one in state.revisions),
        serving=sum(one.ready for one in state.revisions if one.wire in paired),
        updated=new.pods,
        updated_ready=new.ready,
    )


def router_view(observed: Observed, *, name: str, wanted: int) -> RoleView:
    """The routers. Their Deployment tells how many are of its newest template; of those that are ready, so
    many at least are new as there can't be old ones."""
    pods = [pod for pod in observed.pods if pod.role == "router" and pod.phase not in _ENDED]
    alive = [pod for pod in pods if not pod.deleting]
    ready = sum(pod.ready for pod in alive)
    live = observed.children.get(Ref("apps/v1", "Deployment", name))
    status = (live or {}).get("status") or {}
    seen = live is not None and status.get("observedGeneration", 0) >= live["metadata"].get("generation", 0)
    updated = min(int(status.get("updatedReplicas") or 0), len(alive)) if seen else 0
    old = len(alive) - updated
    return RoleView(
        wanted=wanted,
        pods=len(alive),
        ready=ready,
        serving=ready,
        updated=updated,
        updated_ready=max(0, ready - old),
    )


def _labels(live: Mapping[str, Any]) -> Mapping[str, str]:
    """What a workload's pods are: by its selector, which nobody can edit, and its template.

    Its own labels come last. Nobody puts those of an older revision right, and a serving workload that lost
    one would be taken for a thing that nobody wants.
    """
    spec = live.get("spec") or {}
    template = (spec.get("leaderWorkerTemplate") or {}).get("leaderTemplate") or spec.get("template") or {}
    told: dict[str, str] = {}
    for labels in (
        live["metadata"].get("labels"),
        (template.get("metadata") or {}).get("labels"),
        (spec.get("selector") or {}).get("matchLabels"),
    ):
        told |= labels or {}
    return told


def _workload(ref: Ref, live: Mapping[str, Any], labels: Mapping[str, str]) -> Workload:
    meta, spec, status = live["metadata"], live.get("spec") or {}, live.get("status") or {}
    ordered = ref.kind == "LeaderWorkerSet"
    # A LeaderWorkerSet's status does not say which generation it is of.
    seen = ordered or status.get("observedGeneration", 0) >= meta.get("generation", 0)
    deleting = bool(meta.get("deletionTimestamp"))
    return Workload(
        ref=ref,
        uid=meta.get("uid", ""),
        revision=labels[names.REVISION],
        wire=labels.get(names.WIRE_HASH, ""),
        replicas=0 if deleting else int(spec.get("replicas", 1)),
        reported=int(status.get("replicas") or 0),
        settled=seen and not deleting,
        deleting=deleting,
        ordered=ordered,
        size=int((spec.get("leaderWorkerTemplate") or {}).get("size", 1)) if ordered else 1,
    )


def _revision(
    revision: str, load: Workload | None, pods: list[PodFact], *, wire: str, trouble: str, gated: bool
) -> RevisionState:
    engines = _engines(load, pods, gated=gated)
    alive = [engine for engine in engines if not engine.deleting]
    ready = [engine for engine in alive if engine.ready]
    return RevisionState(
        revision=revision,
        wire=wire,
        replicas=load.replicas if load else 0,
        exists=load is not None,
        reported=load.reported if load else 0,
        settled=load is None or load.settled,
        pods=len(alive),
        deleting=len(engines) - len(alive),
        ready=len(ready),
        failing=sum(engine.failing for engine in alive),
        trouble=trouble,
        ready_at=tuple(engine.number for engine in ready) if load and load.ordered else None,
    )


def _engines(load: Workload | None, pods: list[PodFact], *, gated: bool) -> list[_Engine]:
    if load is None or not load.ordered:
        return [
            _Engine(0, not pod.deleting and _ready(pod, gated), pod.deleting, _failing(pod, gated))
            for pod in pods
        ]
    groups: dict[str, list[PodFact]] = {}
    for pod in pods:
        groups.setdefault(pod.group, []).append(pod)
    return [_group(index, told, size=load.size, gated=gated) for index, told in sorted(groups.items())]


def _group(index: str, pods: list[PodFact], *, size: int, gated: bool) -> _Engine:
    """Ready only as a whole. While one pod is being replaced the group still holds its place."""
    alive = [pod for pod in pods if not pod.deleting]
    ready = len(alive) >= size and len(alive) == len(pods) and all(_ready(pod, gated) for pod in alive)
    return _Engine(
        int(index) if index.isdigit() else 0,
        ready,
        not alive,
        not ready and any(_failing(pod, gated) for pod in alive),
    )


def _ready(pod: PodFact, gated: bool) -> bool:
    return pod.ready or (not gated and pod.containers_ready)


def _failing(pod: PodFact, gated: bool) -> bool:
    """Whether the pod is not ready and says why that will stay so."""
    if pod.deleting or _ready(pod, gated) or pod.containers_ready:
        return False
    return bool(pod.preflight_failed or pod.unschedulable or pod.waiting or pod.restarts)


def _trouble(observed: Observed, *, deployment: str, role: str, revision: str) -> str:
    """The worst trouble of a revision, as its reason and words that stay the same."""
    found = problems_of(observed, deployment=deployment, role=role, revision=revision)
    return next((f"{one.reason}: {one.message}" for one in found if one.reason not in _PASSING), "")


def _wire(observed: Observed, load: Workload | None, pods: Iterable[PodFact], revision: str) -> str:
    """Of a revision that is not the target: as its workload is labelled; without one, as routers say."""
    if load is not None and load.wire:
        return load.wire
    uids = {pod.uid for pod in pods}
    said = {
        names.hash_label(engine.wire_hash)
        for router in observed.routers
        for engine in router.engines
        if engine.wire_hash and engine.identity.partition("/")[0] in uids
    }
    return min(said, default=f"unknown-{revision}")
