"""The kinds that the operator reads and writes, and where the API server keeps them."""

from __future__ import annotations

from typing import Final, NamedTuple

from plait_operator.api.base import API_VERSION


class Kind(NamedTuple):
    """One kind. `plural`: its name in paths. `optional`: a cluster may do without it."""

    api_version: str
    kind: str
    plural: str
    optional: bool = False

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Path of all objects, of those of a namespace, of one, or of its subresource."""
        root = "/apis/" if "/" in self.api_version else "/api/"
        parts = [root + self.api_version]
        if namespace:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/".join(parts)


DEPLOYMENT: Final = Kind(API_VERSION, "SharedKVDeployment", "sharedkvdeployments")
ROLE: Final = Kind(API_VERSION, "SharedKVRole", "sharedkvroles")
POD: Final = Kind("v1", "Pod", "pods")
EVENT: Final = Kind("events.k8s.io/v1", "Event", "events")
LEASE: Final = Kind("coordination.k8s.io/v1", "Lease", "leases")
SECRET: Final = Kind("v1", "Secret", "secrets")

CHILDREN: Final = (
    ROLE,
    Kind("v1", "ConfigMap", "configmaps"),
    Kind("v1", "Service", "services"),
    Kind("v1", "ServiceAccount", "serviceaccounts"),
    Kind("rbac.authorization.k8s.io/v1", "Role", "roles"),
    Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings"),
    Kind("apps/v1", "Deployment", "deployments"),
    Kind("batch/v1", "Job", "jobs"),
    Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
    Kind("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers"),
    Kind("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "leaderworkersets", optional=True),
    Kind("monitoring.coreos.com/v1", "ServiceMonitor", "servicemonitors", optional=True),
    Kind("monitoring.coreos.com/v1", "PodMonitor", "podmonitors", optional=True),
)
"""Kinds of the children of deployments, each watched by label."""

_KNOWN: Final = {(k.api_version, k.kind): k for k in (DEPLOYMENT, POD, EVENT, LEASE, SECRET, *CHILDREN)}


def kind_of(api_version: str, kind: str) -> Kind:
    """The kind of a manifest. Raises KeyError for one that the operator does not write."""
    found = _KNOWN.get((api_version, kind))
    if found is None:
        raise KeyError(f"{kind} of {api_version} is no kind that the operator writes: add it to apply.kinds")
    return found
