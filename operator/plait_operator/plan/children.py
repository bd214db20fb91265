"""Children as actions: what must be applied, and what is not wanted any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any

from plait_operator import names
from plait_operator.actions import Action, Apply, Delete
from plait_operator.api.resource import SharedKVDeployment
from plait_operator.observed import Manifest, Observed, Ref
from plait_operator.plan.blueprint import Blueprint, Built
from plait_operator.plan.drift import differs, stamped
from plait_operator.plan.engines import WORKLOADS, Workload, workloads_of
from plait_operator.plan.roles import ROLES, Step
from plait_operator.plan.scaling import role_ref, seed


def going(live: Mapping[str, Any] | None) -> bool:
    """Whether the object is being deleted: it can't be mended any more, only made anew when it is gone."""
    return live is not None and bool(live["metadata"].get("deletionTimestamp"))


def applied(built: Built, observed: Observed) -> Iterator[Apply]:
    """The manifest, if applying it would change anything."""
    if observed.fits.get(built.ref) == built.digest:
        return
    live = observed.children.get(built.ref)
    if going(live):
        return
    why = differs(built.manifest, live, told=built.digest)
    if why:
        yield Apply(stamped(built.manifest), why)
    else:
        observed.fits[built.ref] = built.digest


def static_children(asked: Blueprint, deployment: SharedKVDeployment, observed: Observed) -> list[Action]:
    """All children but the engines', where they are not as they should be."""
    actions: list[Action] = []
    role = role_ref(deployment)
    for built in asked.static:
        needed = list(applied(built, observed))
        if needed and built.ref == role:
            first = seed(deployment, built.manifest, observed)
            actions += [first] if first else []
        actions += needed
    return actions


def engine_children(
    asked: Blueprint, deployment: SharedKVDeployment, observed: Observed, step: Step
) -> tuple[list[Action], set[Ref]]:
    """Contract maps and workloads of both roles, as the rollout's step says. The refs are of what must stay:
    not of workloads that have ended."""
    actions: list[Action] = [action for built in asked.contracts for action in applied(built, observed)]
    wanted = {built.ref for built in asked.contracts}
    for role in ROLES:
        loads = workloads_of(observed, role)
        for revision, replicas in sorted(step.of(role).items()):
            load = loads.get(revision)
            if revision == asked.targets[role]:
                built = asked.sized(role, replicas)
                wanted.add(built.ref)
                actions += _target(built, observed, load, replicas)
            elif load is not None and revision not in step.finished[role]:
                wanted.add(load.ref)
                if replicas != load.replicas and not load.deleting:
                    actions.append(_scaled(deployment, load, replicas))
    return actions, wanted


def _target(built: Built, observed: Observed, load: Workload | None, replicas: int) -> Iterator[Apply]:
    for action in applied(built, observed):
        if load is not None and load.replicas != replicas:
            why = f"revision {load.revision}: {load.replicas} -> {replicas} replicas"
            yield action._replace(why=why)
        else:
            yield action


def _scaled(deployment: SharedKVDeployment, load: Workload, replicas: int) -> Apply:
    """Only the replicas, by a manager that owns nothing else: what else it holds is of an older spec.

    The uid makes it fail where the workload is another one by now, rather than make half an object.
    """
    manifest: Manifest = {
        "apiVersion": load.ref.api_version,
        "kind": load.ref.kind,
        "metadata": {"name": load.ref.name, "namespace": deployment.meta.namespace, "uid": load.uid},
        "spec": {"replicas": replicas},
    }
    why = f"revision {load.revision}: {load.replicas} -> {replicas} replicas"
    return Apply(manifest, why, names.SCALE)


def unwanted(observed: Observed, wanted: Set[Ref]) -> list[Action]:
    """Deletes of children that nothing wants any more, workloads first: what they use must outlive them."""
    alive = _living(observed)
    # By name first: whatever is wanted need not be taken out of the store.
    found = [
        (ref.kind not in WORKLOADS, ref, live)
        for ref in observed.children
        if ref not in wanted and not going(live := observed.children[ref]) and not alive(live)
    ]
    return [
        Delete(ref, live["metadata"].get("uid", ""), "the spec does not ask for it any more")
        for _, ref, live in sorted(found, key=lambda one: one[:2])
    ]


def _living(observed: Observed) -> Callable[[Mapping[str, Any]], bool]:
    """Whether a child is the contract of a revision that still has a workload or a pod."""
    revisions: set[tuple[str, str]] = {
        (role, revision) for role in ROLES for revision in workloads_of(observed, role)
    }
    revisions |= {(pod.role, pod.revision) for pod in observed.pods}

    def alive(live: Mapping[str, Any]) -> bool:
        labels = live["metadata"].get("labels") or {}
        return (
            live.get("kind") == "ConfigMap"
            and (labels.get(names.ROLE, ""), labels.get(names.REVISION, "")) in revisions
        )

    return alive
