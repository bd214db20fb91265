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
from plait_operator.plan.engines import workloads_of
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
    return _scaled(deployment, observed)


def seed(deployment: SharedKVDeployment, manifest: Manifest, observed: Observed) -> Apply | None:
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
        "spec": {"replicas": _scaled(deployment, observed)},
    }
    return Apply(told, "a first value, which is the autoscaler's from now on", names.SEED)


def _scaled(deployment: SharedKVDeployment, observed: Observed) -> int:
    """The autoscaler's figure. Where its object is gone, by a hand: what runs; and before anything runs, the
    spec's. (In a rollout the largest workload: a sum would count the surge, and grow with each look.)"""
    live: Mapping[str, Any] = observed.children.get(role_ref(deployment)) or {}
    told = (live.get("spec") or {}).get("replicas")
    if isinstance(told, int):
        return told
    running = (load.replicas for load in workloads_of(observed, "prefill").values())
    return max(running, default=deployment.spec.prefill.replicas)
