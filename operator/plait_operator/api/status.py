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
    """One condition, as `metav1.Condition` has it."""

    type: str
    status: str = Field(description="True, False or Unknown.")
    reason: str = Field(description="One word for programs; the table of reasons says what each means.")
    message: str = Field(default="", description="Why, for people, with the fix where there is one.")
    observed_generation: int = Field(default=0, description="Generation of the spec that it was made from.")
    last_transition_time: str = Field(default="", description="When `status` last changed.")


class Capacity(Facts):
    """Tokens of one prefill group."""

    bytes_per_rank: int = Field(default=0, description="Bytes of one GPU for KV pools and dense scratch.")
    tokens_shared: int = Field(default=0, description="KV tokens with one copy per group.")
    tokens_replicated: int = Field(
        default=0, description="KV tokens in the same bytes with one copy per rank: what stock would hold."
    )
    max_context: int = Field(default=0, description="Longest request in tokens.")
    max_concurrent: int = Field(default=0, description="Requests of that length that fit at once.")
    source: str = Field(
        default="estimated", description="estimated: from sizes of model and GPU. reported: by the engines."
    )


class Hashes(Facts):
    """Hashes of the newest contract, 64 hex digits each."""

    wire: str = Field(default="", description="Prefill and decode pair only when it is equal.")
    group: str = Field(default="", description="What the ranks of a prefill group agree on.")


class RoleStatus(Facts):
    """Counts of one role, over all revisions unless `updated`."""

    replicas: int = Field(default=0, description="Pods (groups) that are there and not on their way out.")
    ready: int = Field(default=0, description="Those that are ready.")
    available: int = Field(default=0, description="Those that are ready and have a partner: they serve.")
    updated: int = Field(default=0, description="Those of the newest revision.")
    pods: str = Field(default="", description="Ready of wanted, as `kubectl get` shows it: 2/3.")
    revision: str = Field(default="", description="The newest revision.")


class SharedKVDeploymentStatus(Facts):
    """What is there."""

    observed_generation: int = Field(default=0, description="Generation of the spec that was last looked at.")
    conditions: list[Condition] = Field(default_factory=list, description="In the order of the table below.")
    capacity: Capacity | None = None
    contract: Hashes = Field(default_factory=Hashes)
    prefill: RoleStatus = Field(default_factory=RoleStatus)
    decode: RoleStatus = Field(default_factory=RoleStatus)
    router: RoleStatus = Field(default_factory=RoleStatus)
    decode_selector: str = Field(default="", description="Selector of the scale subresource (decode pods).")
    endpoint: str = Field(default="", description="Address for clients inside the cluster.")


class SharedKVRoleStatus(Facts):
    """What the scale subresource tells of one role."""

    replicas: int = Field(default=0, description="Pods that are there.")
    ready: int = Field(default=0, description="Pods that are ready.")
    selector: str = Field(default="", description="Selector of the role's pods.")
