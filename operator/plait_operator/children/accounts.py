"""Who the routers are to the API server: they may read the pods of their namespace, and nothing else."""

from __future__ import annotations

from plait_operator import names
from plait_operator.children.context import Context
from plait_operator.children.meta import meta
from plait_operator.observed import Manifest


def account_name(deployment: str) -> str:
    """Name of ServiceAccount, Role and RoleBinding of a deployment's routers."""
    return names.short(deployment, "router")


def accounts(ctx: Context) -> list[Manifest]:
    """ServiceAccount, Role and RoleBinding of the routers. Engines have none: they get no token."""
    deployment = ctx.deployment
    name = account_name(deployment.meta.name)
    metadata = meta(deployment, name, role="router")
    return [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": metadata,
            # The router's pod asks for its token itself; another pod with this account gets none.
            "automountServiceAccountToken": False,
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": metadata,
            # RBAC knows no label selectors: the narrowest there is, is the namespace.
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": deployment.meta.namespace}],
        },
    ]
