"""`status` of a SharedKVDeployment: what the operator has seen, for people and for tools."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from plait_operator.api.base import Facts


class ConditionType(StrEnum):
    """Conditions, in the order in which they come true."""

    MODEL_INSPECTED = "ModelInspected"
    """The model's shape is known."""
    ADMITTED = "Admitted"
    """The spec fits the contract."""
    PREFILL_READY = "PrefillReady"
    DECODE_READY = "DecodeReady"
    TRANSFER_READY = "TransferReady"
    """Every engine pod passed its preflight: devices, peer mapping, versions and hook targets."""
    ROUTER_READY = "RouterReady"
    AVAILABLE = "Available"
    """Requests can be served: a router, and a pair of prefill and decode with equal wire hashes."""
    PROGRESSING = "Progressing"
    """Something is being brought about; False with a reason when it stopped short."""
    DEGRADED = "Degraded"
    """Something is wrong that does not end by itself."""


class Condition(Facts):
    """One condition, as `metav1.Condition` has it. `status`: True, False or Unknown."""

    type: str
    status: str
    reason: str
    message: str = ""
    observed_generation: int = 0
    last_transition_time: str = ""


class Capacity(Facts):
    """Tokens of one prefill group. `source`: estimated from sizes, or reported by the engines."""

    bytes_per_rank: int = 0
    tokens_shared: int = 0
    tokens_replicated: int = 0
    max_context: int = 0
    max_concurrent: int = 0
    source: str = "estimated"


class Hashes(Facts):
    """Hashes of the newest contract: what the router pairs on, and what a group agrees on."""

    wire: str = ""
    group: str = ""


class RoleStatus(Facts):
    """Counts of one role over all revisions. `updated`: pods of the newest revision.

    `pods`: ready pods of those wanted, "2/3", as `kubectl get` shows them.
    """

    replicas: int = 0
    ready: int = 0
    available: int = 0
    updated: int = 0
    pods: str = ""
    revision: str = ""


class SharedKVDeploymentStatus(Facts):
    """What is there."""

    observed_generation: int = 0
    conditions: list[Condition] = Field(default_factory=list)
    capacity: Capacity | None = None
    contract: Hashes = Field(default_factory=Hashes)
    prefill: RoleStatus = Field(default_factory=RoleStatus)
    decode: RoleStatus = Field(default_factory=RoleStatus)
    router: RoleStatus = Field(default_factory=RoleStatus)
    decode_selector: str = Field(default="", description="Selector of the scale subresource (decode pods).")
    endpoint: str = Field(default="", description="Address for clients inside the cluster.")


class SharedKVRoleStatus(Facts):
    """What the scale subresource tells of one role."""

    replicas: int = 0
    ready: int = 0
    selector: str = ""
