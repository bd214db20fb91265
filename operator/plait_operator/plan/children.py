"""Children as actions: what must be applied, and what is not wanted any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any

from plait_operator import names
from plait_operator.actions import Action, Apply, Delete
from plait_operator.children.context import Context
from plait_operator.children.revision import contract_map
from plait_operator.children.static import static
from plait_operator.children.workload import workload
from plait_operator.observed import Manifest, Observed, Ref
from plait_operator.plan.drift import differs, stamped
from plait_operator.plan.engines import WORKLOADS, Workload, workloads_of
from plait_operator.plan.roles import ROLES, Role, Step
from plait_operator.plan.scaling import role_ref, seed


def going(live: Mapping[str, Any] | None) -> bool:
    """Whether the object is being deleted: it can't be mended any more, only made anew when it is gone."""
    return live is not None and bool(live["metadata"].get("deletionTimestamp"))


def applied(manifest: Manifest, observed: Observed) -> Iterator[Apply]:
    """The manifest, if applying it would change anything."""
    live = observed.children.get(Ref.of(manifest))
    why = "" if going(live) else differs(manifest, live)
    if why:
        yield Apply(stamped(manifest), why)


def static_children(ctx: Context, observed: Observed) -> tuple[list[Action], set[Ref]]:
    """All children but the engines'. The refs are of those that are wanted."""
    actions: list[Action] = []
    wanted: set[Ref] = set()
    role = role_ref(ctx.deployment)
    for manifest in static(ctx, live=observed.children):
        ref = Ref.of(manifest)
        wanted.add(ref)
        needed = list(applied(manifest, observed))
        if needed and ref == role:
            first = seed(ctx.deployment, manifest, observed.children.get(ref))
            actions += [first] if first else []
        actions += needed
    return actions, wanted


def engine_children(
    ctx: Context, observed: Observed, step: Step, targets: Mapping[Role, str]
) -> tuple[list[Action], set[Ref]]:
    """Contract maps and workloads of both roles, as the rollout's step says; deletes of ended ones apart."""
    actions: list[Action] = []
    wanted: set[Ref] = set()
    for role in ROLES:
        manifest = contract_map(ctx, role)
        wanted.add(Ref.of(manifest))
        actions += applied(manifest, observed)
    for role in ROLES:
        loads = workloads_of(observed, role)
        for revision, replicas in sorted(step.of(role).items()):
            if revision == targets[role]:
                manifest = workload(ctx, role, replicas=replicas)
                wanted.add(Ref.of(manifest))
                actions += applied(manifest, observed)
                continue
            load = loads[revision]
            if revision not in step.finished[role]:
                wanted.add(load.ref)
                if replicas != load.replicas and not load.deleting:
                    actions.append(_scaled(ctx, load, replicas))
    return actions, wanted


def _scaled(ctx: Context, load: Workload, replicas: int) -> Apply:
    """Only the replicas, by a manager that owns nothing else: what else it holds is of an older spec.

    The uid makes it fail where the workload is another one by now, rather than make half an object.
    """
    manifest: Manifest = {
        "apiVersion": load.ref.api_version,
        "kind": load.ref.kind,
        "metadata": {"name": load.ref.name, "namespace": ctx.deployment.meta.namespace, "uid": load.uid},
        "spec": {"replicas": replicas},
    }
    why = f"revision {load.revision}: {load.replicas} -> {replicas} replicas"
    return Apply(manifest, why, names.SCALE)


def unwanted(observed: Observed, wanted: Set[Ref]) -> list[Action]:
    """Deletes of children that nothing wants any more, workloads first: what they use must outlive them."""
    alive = _living(observed)
    found = [
        (ref.kind not in WORKLOADS, ref, live)
        for ref, live in observed.children.items()
        if ref not in wanted and not going(live) and not alive(live)
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
