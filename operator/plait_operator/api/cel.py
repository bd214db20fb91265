"""Rules that the API server checks by itself (CEL), so that they hold while the admission webhook is down.

The validator says all of this too, and more, in one message: CEL is the net below it. Every rule must stay
within the API server's cost budget, so what it loops or matches over has a bound in the schema.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from plait.contract.families import FAMILIES
from plait.contract.layouts import PAGE_SIZE, KvDtype, Layout, Split, TransferBackend
from plait.contract.validate.engine import RANKS
from plait.contract.versions import ENGINE_VERSIONS

ROUTER_POLICIES = ("prefix-aware", "least-load", "round-robin", "random")
"""Choices of a worker that the router knows (its own list; a test holds the two together)."""


class Rule(NamedTuple):
    """One rule. `at`: the field whose schema carries it, "" for the whole object; `rule` sees it as `self`.

    `field`: path below `at` that the refusal names (".x"), empty for `at` itself. A rule that names `oldSelf`
    is checked on updates only. `values`: where `field` may only be one of these, all of them.
    """

    at: str
    rule: str
    message: str
    field: str = ""
    values: tuple[str | int, ...] = ()


def _among(at: str, values: Iterable[object], what: str) -> Rule:
    known = [value if isinstance(value, int) else str(value) for value in values]
    told = ", ".join(str(value) for value in known)
    return Rule(at, f"self in {known!r}", f"{what}: one of {told}", values=tuple(known))


def _immutable(at: str, why: str) -> Rule:
    return Rule(at, "self == oldSelf", f"cannot be changed: {why}; make a new deployment beside this one")


def _autoscaling(role: str) -> tuple[Rule, ...]:
    at = f"spec.autoscaling.{role}"
    return (
        Rule(at, "self.minReplicas <= self.maxReplicas", "must not exceed maxReplicas", ".minReplicas"),
        Rule(
            at,
            "self.external || (has(self.metrics) && size(self.metrics) > 0)",
            "an HPA needs at least one metric; write external: true where another autoscaler scales the role",
            ".metrics",
        ),
        Rule(
            at,
            "!self.external || !has(self.metrics) || size(self.metrics) == 0",
            "no HPA is made with external: true, so nothing would read them",
            ".metrics",
        ),
        Rule(
            at,
            "!self.external || !has(self.behavior)",
            "no HPA is made with external: true, so nothing would read it",
            ".behavior",
        ),
    )


_SUBDOMAIN = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"


def _object_name(at: str, what: str, field: str = "") -> Rule:
    value = f"self{field}" if field else "self"
    return Rule(at, f"{value}.matches('{_SUBDOMAIN}')", f"not the name of a {what}", field)


DEPLOYMENT_RULES: tuple[Rule, ...] = (
    Rule(
        "",
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "metadata.name: Services and host names are made of it: small letters, digits and dashes, a letter "
        "first, no dash last",
    ),
    Rule(
        "spec.model",
        "!(has(self.family) && has(self.shape))",
        "family and shape say the same thing: keep one of the two",
        ".shape",
    ),
    Rule("spec.model.name", "!self.startsWith('-')", "would be read as a flag: no dash in front"),
    Rule(
        "spec.model",
        "!has(self.revision) || has(self.source.hub)",
        "only a hub has revisions: remove it, or use source.hub",
        ".revision",
    ),
    _among("spec.model.family", FAMILIES, "not a model family that Plait knows"),
    Rule(
        "spec.model.source",
        "[has(self.pvc), has(self.hostPath), has(self.hub)].exists_one(x, x)",
        "exactly one of pvc, hostPath and hub",
    ),
    _object_name("spec.model.source.pvc", "PersistentVolumeClaim", ".claimName"),
    Rule(
        "spec.model.source.pvc",
        "!self.path.startsWith('/') && !('..' in self.path.split('/'))",
        "a folder inside the volume: no / in front, no .. in it",
        ".path",
    ),
    Rule(
        "spec.model.source.hostPath",
        "self.path.startsWith('/') && !('..' in self.path.split('/'))",
        "an absolute path without .. in it",
        ".path",
    ),
    Rule(
        "spec.model.source.hub",
        "self.repo.matches('^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$')",
        "a repository as owner/name, for example zai-org/GLM-5-FP8",
        ".repo",
    ),
    _object_name("spec.model.source.hub.secretRef", "Secret", ".name"),
    _among("spec.engine.version", ENGINE_VERSIONS, "Plait's hooks were not made for this version"),
    _immutable("spec.engine.device", "engines of the two kinds never share a cache"),
    _among(
        "spec.cache.layout", (Layout.SHARED, Layout.REPLICATED), "a stack keeps its prefill pages by owner"
    ),
    _among("spec.cache.split", Split, "no such split"),
    Rule(
        "spec.cache.pageSize",
        f"self == {PAGE_SIZE}",
        f"pages are {PAGE_SIZE} tokens: kernels count on it",
        values=(PAGE_SIZE,),
    ),
    _immutable("spec.cache.pageSize", "all that is cached and sent is counted in pages"),
    _among("spec.cache.dtype", (KvDtype.FP8_E4M3, KvDtype.BF16), "no such KV storage type"),
    Rule(
        "spec.cache.scratchTokens",
        f"self % {PAGE_SIZE} == 0",
        f"whole pages: a multiple of {PAGE_SIZE}, or 0 (planned)",
    ),
    Rule("spec.cache.hostTier.enabled", "!self", "there is no host tier yet: write false"),
    _among("spec.prefill.contextParallel", RANKS, "one cache per group needs a group of so many ranks"),
    Rule(
        "spec.prefill.chunk", f"self % {PAGE_SIZE} == 0", f"chunks are whole pages: a multiple of {PAGE_SIZE}"
    ),
    Rule(
        "spec.prefill",
        f"!has(self.maxTotalTokens) || self.maxTotalTokens % (self.contextParallel * {PAGE_SIZE}) == 0",
        f"a pool holds whole stripes: a multiple of contextParallel x {PAGE_SIZE}",
        ".maxTotalTokens",
    ),
    Rule(
        "spec.prefill",
        "self.contextParallel % self.nodesPerGroup == 0",
        "every node of a group has as many ranks: a divisor of contextParallel",
        ".nodesPerGroup",
    ),
    _among("spec.transfer.backend", TransferBackend, "Plait does not carry pages over this backend"),
    Rule(
        "spec.transfer",
        "self.backend != 'mooncake_tcp' || !(has(self.rdma.resource) || "
        "(has(self.rdma.devices) && size(self.rdma.devices) > 0))",
        "mooncake_tcp uses no RDMA device: remove rdma, or use backend mooncake",
        ".rdma",
    ),
    Rule(
        "spec.transfer.rdma.resource",
        "self.contains('/')",
        "an extended resource has a domain, for example rdma/hca",
    ),
    _object_name("spec.router.auth.secretRef", "Secret", ".name"),
    _object_name("spec.router.tls.secretRef", "Secret", ".name"),
    _object_name("spec.pods.imagePullSecrets[]", "Secret", ".name"),
    _object_name("spec.pods.priorityClassName", "PriorityClass"),
    _among("spec.router.policy", ROUTER_POLICIES, "no such policy"),
    _among("spec.router.decodePolicy", ROUTER_POLICIES, "no such policy"),
    Rule(
        "spec.rollout",
        "self.maxUnavailable > 0 || self.maxSurge > 0",
        "with maxUnavailable 0 and maxSurge 0 no pod could ever be replaced: raise one of the two",
        ".maxSurge",
    ),
    *_autoscaling("prefill"),
    *_autoscaling("decode"),
    Rule(
        "spec",
        "!has(self.model.contextLength) || self.cache.scratchTokens == 0 || "
        "self.cache.scratchTokens >= self.model.contextLength",
        "one scratch slot must hold the longest request (model.contextLength)",
        ".cache.scratchTokens",
    ),
    Rule(
        "spec",
        "!has(self.model.contextLength) || !has(self.prefill.maxTotalTokens) || "
        "self.prefill.maxTotalTokens >= self.model.contextLength",
        "a group must hold the longest request (model.contextLength)",
        ".prefill.maxTotalTokens",
    ),
    Rule(
        "spec",
        "self.engine.device != 'cpu' || self.transfer.backend == 'mooncake_tcp'",
        "a CPU engine has no RDMA: use backend mooncake_tcp",
        ".transfer.backend",
    ),
    Rule(
        "spec",
        "self.engine.device != 'cpu' || self.cache.peerAccess != 'required'",
        "a CPU engine has no GPUs to map: auto or off",
        ".cache.peerAccess",
    ),
)
"""Rules of SharedKVDeployment."""

ROLE_RULES: tuple[Rule, ...] = ()
"""Rules of SharedKVRole: its schema alone says all that can be wrong."""
