"""The routers: policies by name, Secrets, and the Service in front."""

from __future__ import annotations

from collections.abc import Iterator

from plait.contract.violation import Violation, nearest
from plait_operator.api.spec import SharedKVDeploymentSpec
from plait_operator.validate.wording import object_name, qualified

POLICIES = ("prefix-aware", "least-load", "round-robin", "random")
"""What `plait router --policy` takes (docs/router.md)."""
MOST_PROCESSES = 64


def router_violations(spec: SharedKVDeploymentSpec) -> Iterator[Violation]:
    """Violations of spec.router, but for its image, resources and podTemplate."""
    router = spec.router
    for field, name in (("policy", router.policy), ("decodePolicy", router.decode_policy)):
        if name not in POLICIES:
            close = nearest(name, POLICIES)
            known = f"one of {', '.join(POLICIES)}"
            fix = f"did you mean {close}? {known}" if close else known
            yield Violation(f"spec.router.{field}", name, "the router has no such policy", fix)
    if router.processes > MOST_PROCESSES:
        reason = f"a router has at most {MOST_PROCESSES}"
        fix = f"at most {MOST_PROCESSES}, and more spec.router.replicas"
        yield Violation("spec.router.processes", router.processes, reason, fix)
    for field, told in (("auth", router.auth), ("tls", router.tls)):
        if told is not None and (why := object_name(told.secret_ref.name)):
            path = f"spec.router.{field}.secretRef.name"
            yield Violation(path, told.secret_ref.name, why, "the name of a Secret")
    for key, value in router.service.annotations.items():
        if why := qualified(key):
            yield Violation(f"spec.router.service.annotations.{key}", value, why, "DOMAIN/NAME, or NAME")
