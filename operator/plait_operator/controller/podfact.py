"""A Pod's JSON, reduced to what plans look at. Pure.

Texts that the kubelet changes while nothing happens (back-off times, the two names of a failed pull) are made
one here, or every condition that quotes them would flap.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

from plait_operator.names import ADMITTED_GATE, REVISION, ROLE
from plait_operator.observed import PodFact

_GROUP: Final = "leaderworkerset.sigs.k8s.io/group-index"
_WORKER: Final = "leaderworkerset.sigs.k8s.io/worker-index"
_PREFLIGHT: Final = "preflight"
_LONGEST: Final = 400
# The normal course of a start, which is no trouble.
_STARTING: Final = frozenset({"", "ContainerCreating", "PodInitializing"})
_PULL: Final = frozenset({"ErrImagePull", "ImagePullBackOff"})

# What pods of workloads and Jobs are held by. Of a LeaderWorkerSet's, the leaders by its StatefulSet, and the
# rest of each group by a StatefulSet that its leader holds.
_HOLDERS: Final = frozenset({("apps", "ReplicaSet"), ("apps", "StatefulSet"), ("batch", "Job")})

_Json = Mapping[str, Any]


def is_held(pod: _Json) -> bool:
    """Whether a controller of a workload or of a Job holds this Pod.

    Labels alone do not make a pod one of a deployment: somebody may have copied them to a pod of his own, or
    have taken a pod out of its workload by its labels. Nobody makes such a pod anew or scales it down.
    """
    owners = pod["metadata"].get("ownerReferences") or ()
    holder: _Json = next((owner for owner in owners if owner.get("controller")), {})
    return (str(holder.get("apiVersion", "")).partition("/")[0], holder.get("kind")) in _HOLDERS


def pod_fact(pod: _Json) -> PodFact:
    """Of a Pod as the API server has it."""
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    labels: Mapping[str, str] = meta.get("labels") or {}
    conditions = {c.get("type"): c for c in status.get("conditions") or ()}
    inits, mains = _list(status, "initContainerStatuses"), _list(status, "containerStatuses")
    verdict = next((_ended(c) for c in inits if c.get("name") == _PREFLIGHT), {})
    ready = _true(conditions, "Ready")
    scheduled = conditions.get("PodScheduled") or {}
    return PodFact(
        name=meta["name"],
        uid=meta["uid"],
        role=sys.intern(labels.get(ROLE, "")),
        revision=sys.intern(labels.get(REVISION, "")),
        ip=status.get("podIP") or "",
        node=sys.intern(spec.get("nodeName") or ""),
        phase=sys.intern(status.get("phase") or ""),
        ready=ready,
        containers_ready=_true(conditions, "ContainersReady"),
        admitted=_true(conditions, ADMITTED_GATE) if ADMITTED_GATE in conditions else None,
        deleting=bool(meta.get("deletionTimestamp")),
        unschedulable=_cut(scheduled.get("message") or "unschedulable")
        if scheduled.get("status") == "False"
        else "",
        waiting=_cut("; ".join(sorted(set(_waits(inits + mains))))),
        restarts=sum(int(c.get("restartCount") or 0) for c in inits + mains),
        preflight=str(verdict.get("message") or ""),
        preflight_failed=bool(verdict) and verdict.get("exitCode") != 0,
        terminated=next((text for c in mains if (text := _last_words(_ended(c)))), ""),
        ready_since=(conditions["Ready"].get("lastTransitionTime") or "") if ready else "",
        created=meta.get("creationTimestamp") or "",
        group=sys.intern(labels.get(_GROUP, "")),
        worker=_int(labels.get(_WORKER, "0")),
    )


def _waits(containers: list[_Json]) -> Iterator[str]:
    """Why containers do not run, one line each."""
    for container in containers:
        told = (container.get("state") or {}).get("waiting") or {}
        reason, message = str(told.get("reason") or ""), str(told.get("message") or "")
        if reason in _STARTING:
            continue
        if reason in _PULL:
            # 'Back-off pulling image "x": ErrImagePull: why' and plain 'why' take turns.
            reason, message = "ImagePullBackOff", message.rpartition("ErrImagePull: ")[2]
        elif reason == "CrashLoopBackOff":
            # Its own message counts the back-off; why it ended is what helps.
            message = _last_words((container.get("lastState") or {}).get("terminated") or {})
        yield (
            f"{reason}: {container.get('name')}: {message}"
            if message
            else f"{reason}: {container.get('name')}"
        )


def _ended(container: _Json) -> _Json:
    """How a container ended, now or the last time; empty: it never did."""
    for when in ("state", "lastState"):
        told: _Json | None = (container.get(when) or {}).get("terminated")
        if told:
            return told
    return {}


def _last_words(ended: _Json) -> str:
    if not ended:
        return ""
    message = str(ended.get("message") or "").strip()
    if message:
        return message
    code, reason = ended.get("exitCode", 0), ended.get("reason") or ""
    return "" if code == 0 else f"{reason or 'ended'} with exit code {code}"


def _true(conditions: Mapping[Any, _Json], kind: str) -> bool:
    return (conditions.get(kind) or {}).get("status") == "True"


def _list(status: _Json, name: str) -> list[_Json]:
    return list(status.get(name) or ())


def _int(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
