"""Metadata that every child has: its namespace, the operator's labels, and whose it is."""

from __future__ import annotations

from collections.abc import Mapping

from plait_operator import names
from plait_operator.api.base import API_VERSION
from plait_operator.api.resource import SharedKVDeployment
from plait_operator.observed import Manifest


def owner_reference(deployment: SharedKVDeployment) -> Manifest:
    """Makes `deployment` the one controller of a child: the garbage collector takes the child with it.

    `blockOwnerDeletion`: a foreground deletion of the deployment waits for the child.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": "SharedKVDeployment",
        "name": deployment.meta.name,
        "uid": deployment.meta.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def meta(
    deployment: SharedKVDeployment,
    name: str,
    *,
    role: str = "",
    annotations: Mapping[str, str] | None = None,
) -> Manifest:
    """`metadata` of the child `name` of `deployment`. `role`: prefill, decode or router, or none."""
    told: Manifest = {
        "name": name,
        "namespace": deployment.meta.namespace,
        "labels": names.labels(deployment.meta.name, role=role),
        "ownerReferences": [owner_reference(deployment)],
    }
    if annotations:
        told["annotations"] = dict(annotations)
    return told
