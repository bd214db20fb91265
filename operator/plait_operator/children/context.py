"""What the builders of manifests are given."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from plait.contract.kv import GroupContract
from plait.contract.shape import ModelShape
from plait_operator.api.resource import SharedKVDeployment
from plait_operator.api.status import Capacity
from plait_operator.capacity import estimate


@dataclass(frozen=True, kw_only=True)
class Release:
    """What the operator's own installation decides. `images`: defaults where a deployment names none."""

    runtime_image: str = "plait-runtime:0.1.0"
    router_image: str = "plait-router:0.1.0"
    image_pull_policy: str = "IfNotPresent"
    namespace: str = "plait-system"
    """Where the operator runs: network policies let it ask the routers."""
    monitoring_namespace: str = "monitoring"
    """Where Prometheus runs: network policies let it scrape."""
    api_server_cidrs: tuple[str, ...] = ("0.0.0.0/0", "::/0")
    """Where the API server may be: the routers' one way out beside engines and DNS."""
    api_server_ports: tuple[int, ...] = (443, 6443)
    """Where it may listen there: its Service's port, and its own, behind that (to most network plugins)."""
    experimental: frozenset[str] = field(default_factory=frozenset)
    """Features that no test has shown on engines, let through all the same: "multi-host-groups"."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """One deployment with what was found out about it. `contract`: None until the shape is known."""

    deployment: SharedKVDeployment
    release: Release
    shape: ModelShape | None = None
    contract: GroupContract | None = None
    context_length: int = 0
    """Longest request in tokens: the spec's, or the shape's."""
    apis: frozenset[str] = frozenset()
    revisions: dict[str, str] = field(init=False, compare=False, repr=False, default_factory=dict)
    """By role, once made (see `revision`): names of most children hold one, and it takes a whole pod."""

    @cached_property
    def hashes(self) -> tuple[str, str]:
        """Of the contract: wire and group; empty while there is none."""
        return ("", "") if self.contract is None else (self.contract.wire.hash, self.contract.hash)

    @cached_property
    def planned(self) -> Capacity | None:
        """`capacity.estimate`, of a known shape. Raises what that raises."""
        return None if self.shape is None else estimate(self.deployment.spec, self.shape)
