"""What runs the pods of one role and revision: a Deployment, or a LeaderWorkerSet for groups over nodes."""

from __future__ import annotations

from typing import Final

from plait_operator import names
from plait_operator.children.context import Context
from plait_operator.children.meta import meta
from plait_operator.children.pod import hashes
from plait_operator.children.revision import revision, template
from plait_operator.observed import Manifest

LWS_API: Final = "leaderworkerset.x-k8s.io/v1"
LWS_NAME_LIMIT: Final = 47
"""Its pods carry `<name>-<group>-<10 digits>` in a label, and there may be 9,999 groups."""
EXCLUSIVE: Final = "leaderworkerset.sigs.k8s.io/exclusive-topology"
"""Annotation: a group gets a domain of this topology key to itself. Read from the set, not from its pods."""
GROUP_KEY: Final = "leaderworkerset.sigs.k8s.io/group-key"
"""Label that the pods of one group have in common."""

# Beyond the hour that an engine may take to start, and its image before that.
_PROGRESS_S: Final = 2 * 3600


def spans_nodes(ctx: Context, role: str) -> bool:
    """Whether one engine of `role` is several pods."""
    return role == "prefill" and ctx.deployment.spec.prefill.nodes_per_group > 1


def workload_name(ctx: Context, role: str, digits: str) -> str:
    """Name of the workload of `role` at revision `digits`."""
    limit = LWS_NAME_LIMIT if spans_nodes(ctx, role) else names.LIMIT
    return names.short(ctx.deployment.meta.name, role, digits, limit=limit)


def workload(ctx: Context, role: str, *, replicas: int) -> Manifest:
    """The workload of the wanted revision of `role`, with `replicas` pods (groups, where one spans nodes)."""
    digits = revision(ctx, role)
    metadata = meta(ctx.deployment, workload_name(ctx, role, digits), role=role)
    metadata["labels"] |= {names.REVISION: digits, **hashes(ctx, role)}
    if spans_nodes(ctx, role):
        return _groups(ctx, role, metadata, digits=digits, replicas=replicas)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": names.selector(ctx.deployment.meta.name, role=role, revision=digits)},
            # A change of the pods is another revision, and so another Deployment. Should somebody edit this
            # one by hand, it must not take a serving pod away before a new one is ready.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "revisionHistoryLimit": 0,
            "progressDeadlineSeconds": _PROGRESS_S,
            "template": _labelled(template(ctx, role), digits),
        },
    }


def _groups(ctx: Context, role: str, metadata: Manifest, *, digits: str, replicas: int) -> Manifest:
    leader, worker = (
        _together(_labelled(template(ctx, role, worker=is_worker), digits)) for is_worker in (False, True)
    )
    for each in (leader, worker):
        topology = each["metadata"].get("annotations", {}).pop(EXCLUSIVE, None)
        if topology is not None:
            metadata["annotations"] = {EXCLUSIVE: topology}
    return {
        "apiVersion": LWS_API,
        "kind": "LeaderWorkerSet",
        "metadata": metadata,
        "spec": {
            "replicas": replicas,
            "startupPolicy": "LeaderCreated",
            "leaderWorkerTemplate": {
                "size": ctx.deployment.spec.prefill.nodes_per_group,
                # Ranks hold one cache together: a group without one of them has no use.
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": leader,
                "workerTemplate": worker,
            },
        },
    }


def _labelled(pod: Manifest, digits: str) -> Manifest:
    pod["metadata"]["labels"][names.REVISION] = digits
    return pod


def _together(pod: Manifest) -> Manifest:
    """Ask that the pods of a group be near each other: in one NVLink domain, or else in one zone.

    Wished, not required: a cluster need not label its nodes so. Who needs it puts EXCLUSIVE into the role's
    podTemplate annotations.
    """
    own = {"matchLabels": {names.INSTANCE: pod["metadata"]["labels"][names.INSTANCE]}}
    wishes = [
        {
            "weight": weight,
            "podAffinityTerm": {
                "topologyKey": key,
                "labelSelector": own,
                "matchLabelKeys": [GROUP_KEY],
            },
        }
        for key, weight in (("nvidia.com/gpu.clique", 100), ("topology.kubernetes.io/zone", 50))
    ]
    affinity = pod["spec"].setdefault("affinity", {})
    if "podAffinity" not in affinity:
        affinity["podAffinity"] = {"preferredDuringSchedulingIgnoredDuringExecution": wishes}
    return pod
