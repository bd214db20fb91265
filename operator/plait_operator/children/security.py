"""Security contexts that Pod Security `restricted` admits, for pods that need nothing of the node."""

from __future__ import annotations

from typing import Final

from plait_operator.observed import Manifest

USER: Final = 65532
"""The user of the control images; any image runs as it, for files are read and nothing is owned."""


def restricted_pod() -> Manifest:
    """`securityContext` of a pod. No fsGroup: the kubelet would walk through a whole volume of weights."""
    return {
        "runAsNonRoot": True,
        # Named in the pod, not only in the image: the kubelet then hands the token's file to this user.
        "runAsUser": USER,
        "runAsGroup": USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def restricted_container() -> Manifest:
    """`securityContext` of each of its containers."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
