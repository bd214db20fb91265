"""Names, labels and annotations that the operator gives: one place, and never over 63 characters."""

from __future__ import annotations

import hashlib
from typing import Final

LIMIT: Final = 63
"""Longest name of a Service, a pod's host or a label value (RFC 1123 label)."""

MANAGER: Final = "plait-operator"
"""Field manager of server-side apply, and the value of app.kubernetes.io/managed-by."""
SEED: Final = "plait-operator-seed"
"""Field manager of first values that an autoscaler then owns."""
SCALE: Final = "plait-operator-scale"
"""Field manager of the replicas of workloads of older revisions, whose manifests are not known any more."""
APPLIED: Final = "plait.dev/applied"
"""Annotation of every child: digest of the manifest as it was applied, without this annotation."""
FINALIZER: Final = "plait.dev/drain"
ADMITTED_GATE: Final = "plait.dev/router-admitted"
"""Readiness gate of engine pods, opened once a quorum of routers has taken the pod in."""

NAME: Final = "app.kubernetes.io/name"
INSTANCE: Final = "app.kubernetes.io/instance"
COMPONENT: Final = "app.kubernetes.io/component"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
ROLE: Final = "plait.dev/role"
"""prefill, decode or router: what the router's own discovery selects by."""
REVISION: Final = "plait.dev/revision"
WIRE_HASH: Final = "plait.dev/wire-hash"
"""First 16 digits of the wire contract's hash (a label holds no more than 63 characters)."""
GROUP_HASH: Final = "plait.dev/group-hash"

OWNED: Final = {NAME: "plait", MANAGED_BY: MANAGER}
"""Labels of everything the operator makes; the watches select by them."""


def short(*parts: str, limit: int = LIMIT) -> str:
    """`parts` joined by dashes; cut in the first part where that is too long, with a digest of the whole.

    Two different inputs never give the same name: what was cut is told by the digest.
    """
    whole = "-".join(parts)
    if len(whole) <= limit:
        return whole
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]
    tail = "-".join((digest, *parts[1:]))
    head = parts[0][: limit - len(tail) - 1].rstrip("-.")
    return f"{head}-{tail}"


def hash_label(digest: str) -> str:
    """A contract's hash as labels hold it. What is compared with a label must be cut here as well."""
    return digest[:16]  # a label holds no more than 63 characters


def labels(instance: str, *, role: str = "") -> dict[str, str]:
    """Labels of a child of deployment `instance`."""
    told = {**OWNED, INSTANCE: instance}
    return {**told, ROLE: role, COMPONENT: role} if role else told


def selector(instance: str, *, role: str, revision: str = "") -> dict[str, str]:
    """The immutable labels that pick the pods of a role (of one revision)."""
    told = {INSTANCE: instance, MANAGED_BY: MANAGER, ROLE: role}
    return {**told, REVISION: revision} if revision else told
