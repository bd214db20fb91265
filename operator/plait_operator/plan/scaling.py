"""Who decides how many replicas there are: the spec, or an autoscaler through a scale subresource."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plait_operator import names
from plait_operator.actions import Apply
from plait_operator.api.base import API_VERSION
from plait_operator.api.resource import SharedKVDeployment
from plait_operator.children.roles import role_name
from plait_operator.observed import Manifest, Observed, Ref
from plait_operator.plan.roles import Role


def role_ref(deployment: SharedKVDeployment) -> Ref:
    """The SharedKVRole of prefill."""
    return Ref(API_VERSION, "SharedKVRole", role_name(deployment.meta.name))


def wanted(deployment: SharedKVDeployment, observed: Observed, role: Role) -> int:
    """Replicas that are wanted of a role.

    An autoscaler of decode writes into the deployment itself, one of prefill into its SharedKVRole.
    """
    spec = deployment.spec
    if role == "decode":
        return spec.decode.replicas
    if spec.autoscaling.prefill is None:
        return spec.prefill.replicas
    return _replicas(observed.children.get(role_ref(deployment)), spec.prefill.replicas)


def seed(deployment: SharedKVDeployment, manifest: Manifest, live: Mapping[str, Any] | None) -> Apply | None:
    """Give the scaled field of the SharedKVRole `manifest` a value under another manager's name.

    It goes before the manifest itself, which leaves the field out under autoscaling: without it the API
    server would take the operator's former value away, and put the definition's default of 1 in its place.
    The value is what there is, or else the spec's, so that turning autoscaling on scales nothing.
    """
    if deployment.spec.autoscaling.prefill is None:
        return None
    metadata = manifest["metadata"]
    told: Manifest = {
        "apiVersion": manifest["apiVersion"],
        "kind": manifest["kind"],
        "metadata": {key: metadata[key] for key in ("name", "namespace", "labels", "ownerReferences")},
        "spec": {"replicas": _replicas(live, deployment.spec.prefill.replicas)},
    }
    return Apply(told, "a first value, which is the autoscaler's from now on", names.SEED)


def _replicas(live: Mapping[str, Any] | None, otherwise: int) -> int:
    told = ((live or {}).get("spec") or {}).get("replicas")
    return told if isinstance(told, int) else otherwise
