"""How a deployment goes: routers first, so that their requests end, then engines, then the finalizer.

Everything else is the garbage collector's. Neither step waits for ever: a pod whose node is lost never ends,
and must not keep the deployment (and its namespace) from going.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from plait_operator import names
from plait_operator.actions import Action, Delete, SetFinalizer
from plait_operator.api.resource import SharedKVDeployment
from plait_operator.observed import Observed, Ref
from plait_operator.plan.clock import seconds_between
from plait_operator.plan.engines import WORKLOADS, workloads_of
from plait_operator.plan.roles import ROLES

MARGIN_S: Final = 60.0
"""Beyond spec.rollout.drainSeconds, for each step: what a pod's end takes beside its requests."""
_ORPHAN: Final = "orphan"
"""Finalizer of an object that was deleted with --cascade=orphan."""
_Doomed: TypeAlias = tuple[Ref, str, str]
"""A workload, its uid, its version."""


class Removal(NamedTuple):
    """`over`: nothing is left to do, and the finalizer goes."""

    actions: tuple[Action, ...]
    over: bool = False
    again_s: float | None = None


def removal(deployment: SharedKVDeployment, observed: Observed) -> Removal:
    """The next step. `deployment` is being deleted and carries the finalizer."""
    if _ORPHAN in deployment.meta.finalizers or _left_behind(observed):
        # All that serves is to stay, and a deployment of the same name takes it over.
        return Removal((SetFinalizer(present=False),), over=True)
    step_s = deployment.spec.rollout.drain_seconds + MARGIN_S
    since = seconds_between(deployment.meta.deleted_at, observed.now)
    routers = _routers(deployment, observed)
    if (routers or _pods(observed, "router")) and since < step_s:
        return Removal(_deletes(routers, "the deployment is being removed"), again_s=step_s - since)
    engines = [
        (load.ref, load.uid, _version(observed, load.ref))
        for role in ROLES
        for load in workloads_of(observed, role).values()
        if not load.deleting
    ]
    left = any(_pods(observed, role) for role in ROLES) or bool(engines)
    if left and since < 2 * step_s:
        deletes = _deletes([*routers, *engines], "the deployment is being removed, its routers have ended")
        return Removal(deletes, again_s=2 * step_s - since)
    return Removal(
        (*_deletes([*routers, *engines], "its time is over"), SetFinalizer(present=False)), over=True
    )


def _left_behind(observed: Observed) -> bool:
    """Whether the collector has taken the owner off all that runs: it was deleted with --cascade=orphan, and
    the finalizer that says so was gone again before anybody looked.
    """
    return any(ref.kind in WORKLOADS for ref in observed.strays) and not any(
        ref.kind in WORKLOADS for ref in observed.children
    )


def _version(observed: Observed, ref: Ref) -> str:
    # The collector may be taking the owner off this very moment: what it has touched is not to be deleted.
    return str(observed.children[ref]["metadata"].get("resourceVersion", ""))


def _routers(deployment: SharedKVDeployment, observed: Observed) -> list[_Doomed]:
    ref = Ref("apps/v1", "Deployment", names.short(deployment.meta.name, "router"))
    live = observed.children.get(ref)
    if live is None or live["metadata"].get("deletionTimestamp"):
        return []
    return [(ref, live["metadata"].get("uid", ""), _version(observed, ref))]


def _pods(observed: Observed, role: str) -> int:
    return sum(pod.role == role and pod.phase not in ("Failed", "Succeeded") for pod in observed.pods)


def _deletes(targets: list[_Doomed], why: str) -> tuple[Delete, ...]:
    return tuple(Delete(ref, uid, why, version) for ref, uid, version in targets)
