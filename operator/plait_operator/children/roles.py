"""The SharedKVRole of prefill: a CRD version has one scale subresource, and decode has the deployment's."""

from __future__ import annotations

from plait_operator import names
from plait_operator.api.base import API_VERSION
from plait_operator.children.context import Context
from plait_operator.children.meta import meta
from plait_operator.observed import Manifest


def role_name(deployment: str) -> str:
    """Name of the SharedKVRole of a deployment's prefill groups."""
    return names.short(deployment, "prefill")


def prefill_role(ctx: Context) -> Manifest:
    """SharedKVRole `<name>-prefill`.

    With prefill autoscaling `replicas` is left out, so that the operator does not own it: what the field
    first holds is the plan's business (`names.SEED`).
    """
    deployment = ctx.deployment
    spec = deployment.spec
    return {
        "apiVersion": API_VERSION,
        "kind": "SharedKVRole",
        "metadata": meta(deployment, role_name(deployment.meta.name), role="prefill"),
        "spec": {} if spec.autoscaling.prefill else {"replicas": spec.prefill.replicas},
    }
