"""What keeps the pods of a role from being ready, in words that stay the same while nothing happens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from plait.contract.verdict import UnreadableError, cut, read_verdict
from plait_operator import names
from plait_operator.api.reasons import Reason
from plait_operator.observed import Observed, PodFact

MESSAGE = 1000
"""Longest message of a condition, in characters."""
_TEXT = 300
_CRASHES = 3
"""Restarts from which a pod that is not ready counts as one that does not recover by itself."""
_REFUSED = ("CreateContainer", "RunContainer", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
_ENDED = ("Failed", "Succeeded")
# The worst first: what a person has to mend comes before what may pass.
_ORDER = (
    Reason.REFUSED,
    Reason.PODS_REFUSED,
    Reason.PREFLIGHT_FAILED,
    Reason.IMAGE_PULL_FAILED,
    Reason.CONTAINER_REFUSED,
    Reason.CRASH_LOOPING,
    Reason.UNSCHEDULABLE,
    Reason.RESTARTING,
    Reason.WAITING_FOR_ROUTERS,
)


class Problem(NamedTuple):
    """One reason with its text."""

    reason: Reason
    message: str


def problems_of(observed: Observed, *, deployment: str, role: str, revision: str) -> list[Problem]:
    """What is wrong with a role's newest revision, the worst first; equal troubles of pods are told once.

    `revision` empty: of whatever pods the role has (routers).
    """
    pods = [pod for pod in pods_of(observed, role=role, revision=revision) if not pod.ready]
    troubled = [(pod, trouble) for pod in pods if (trouble := _of_pod(pod, observed)) is not None]
    told: dict[tuple[Reason, str], list[str]] = {}
    for pod, trouble in troubled:
        told.setdefault(trouble, []).append(pod.name)
    found = [Problem(reason, _named(pods_, text)) for (reason, text), pods_ in told.items()]
    found += _of_children(observed, deployment=deployment, role=role, revision=revision)
    return sorted(found, key=lambda problem: (_ORDER.index(problem.reason), problem.message))


def pods_of(observed: Observed, *, role: str, revision: str) -> list[PodFact]:
    """Pods of a role's revision that are neither at their end nor on their way there, by name."""
    chosen = [
        pod
        for pod in observed.pods
        if pod.role == role
        and not (pod.deleting or pod.phase in _ENDED)
        and (not revision or pod.revision in ("", revision))
    ]
    return sorted(chosen, key=lambda pod: pod.name)


def refusals(observed: Observed) -> list[Problem]:
    """What the API server refused, in a stable order."""
    return [
        Problem(Reason.REFUSED, f"{ref.kind} {ref.name}: {cut(said, _TEXT)}")
        for ref, said in sorted(observed.refusals.items())
    ]


def joined(parts: Iterable[str], *, most: int = 4) -> str:
    """`parts` as one message of bounded length: the first `most`, and how many more there are."""
    texts = list(dict.fromkeys(part for part in parts if part))
    more = f"; and {len(texts) - most} more" if len(texts) > most else ""
    return cut("; ".join(texts[:most]), MESSAGE - len(more)) + more


def failed_checks(pod: PodFact) -> str:
    """Why a pod's preflight said no, check by check; empty when it did not."""
    if not pod.preflight and not pod.preflight_failed:
        return ""
    try:
        verdict = read_verdict(pod.preflight)
    except UnreadableError as error:
        return f"no verdict: {error}" if pod.preflight_failed else ""
    if verdict.ok:
        return ""
    return joined(f"{check.name}: {check.reason}. Fix: {check.fix}" for check in verdict.failed)


def preflight_passed(pod: PodFact) -> bool:
    """Whether the pod's preflight has ended well: by its verdict, or because the engine came after it."""
    if pod.preflight_failed or failed_checks(pod):
        return False
    return pod.containers_ready or bool(pod.preflight)


def _of_pod(pod: PodFact, observed: Observed) -> tuple[Reason, str] | None:
    waiting = pod.waiting
    if checks := failed_checks(pod):
        return Reason.PREFLIGHT_FAILED, checks
    if pod.unschedulable:
        return Reason.UNSCHEDULABLE, _unschedulable(pod.unschedulable)
    if "ImagePull" in waiting:
        return Reason.IMAGE_PULL_FAILED, cut(waiting, _TEXT)
    if any(kind in waiting for kind in _REFUSED):
        return Reason.CONTAINER_REFUSED, cut(waiting, _TEXT)
    if pod.restarts and not pod.containers_ready:
        # The kubelet's own words change between two starts; why the container ended does not.
        reason = Reason.CRASH_LOOPING if pod.restarts >= _CRASHES else Reason.RESTARTING
        return reason, f"ended: {cut(pod.terminated, _TEXT)}" if pod.terminated else "ended without a word"
    if pod.containers_ready and not pod.admitted and pod.role != "router" and not pod.worker:
        return Reason.WAITING_FOR_ROUTERS, _said_of(pod, observed)
    return None


def _said_of(pod: PodFact, observed: Observed) -> str:
    said = [
        engine.trouble
        for router in observed.routers
        for engine in router.engines
        if engine.identity.startswith(f"{pod.uid}/") and not engine.taken_in
    ]
    return joined(sorted(cut(text, _TEXT) for text in said if text)) or "no quorum of routers has taken it in"


def _unschedulable(text: str) -> str:
    """The scheduler's reasons without its counts of nodes, which move whenever some other node does."""
    listed = text.partition("nodes are available: ")[2].partition(". ")[0]
    reasons = sorted({re.sub(r"^\d+ ", "", part.strip()).rstrip(".") for part in listed.split(", ")} - {""})
    return cut("; ".join(reasons) or text, _TEXT)


def _named(pods: list[str], text: str) -> str:
    more = f" and {len(pods) - 1} more" if len(pods) > 1 else ""
    return f"pod {min(pods)}{more}: {text}"


def _of_children(observed: Observed, *, deployment: str, role: str, revision: str) -> Iterator[Problem]:
    for ref in sorted(one for one in observed.children if one.kind == "Deployment"):
        child = observed.children[ref]
        if _is_workload(child, role=role, revision=revision):
            for condition in (child.get("status") or {}).get("conditions") or ():
                if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
                    said = _pods_refused(str(condition.get("message", "")))
                    yield Problem(Reason.PODS_REFUSED, f"{ref.kind} {ref.name}: {said}")
    parts = (deployment, role, revision) if revision else (deployment, role)
    for ref, said in sorted(observed.refusals.items()):
        if ref.name == names.short(*parts):
            yield Problem(Reason.REFUSED, f"{ref.kind} {ref.name}: {cut(said, _TEXT)}")


def _is_workload(child: Mapping[str, Any], *, role: str, revision: str) -> bool:
    labels = (child.get("metadata") or {}).get("labels") or {}
    same = not revision or labels.get(names.REVISION, revision) == revision
    return labels.get(names.ROLE) == role and same


def _pods_refused(message: str) -> str:
    """A refusal of pods without what changes from try to try: the pod's name, and what others use."""
    text = re.sub(r'pods "[^"]*"', "pods", message)
    return cut(re.sub(r", used: .*?, limited: ", ", limited: ", text), _TEXT)
