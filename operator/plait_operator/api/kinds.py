"""The custom resources: names, columns of `kubectl get`, scale, and the rules that their schemas carry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pydantic import BaseModel

from plait_operator.api.cel import DEPLOYMENT_RULES, ROLE_RULES, Rule
from plait_operator.api.spec import SharedKVDeploymentSpec, SharedKVRoleSpec
from plait_operator.api.status import SharedKVDeploymentStatus, SharedKVRoleStatus


class Column(NamedTuple):
    """One column of `kubectl get`. `wide`: only with -o wide."""

    name: str
    kind: str
    path: str
    description: str
    wide: bool = False


class Scale(NamedTuple):
    """Paths of the scale subresource."""

    spec: str
    status: str
    selector: str


class Kind(NamedTuple):
    """One custom resource, and what its CRD is made of."""

    kind: str
    plural: str
    short: str
    about: str
    spec: type[BaseModel]
    status: type[BaseModel]
    scale: Scale
    columns: tuple[Column, ...]
    rules: tuple[Rule, ...]
    keyed: Mapping[str, str]
    """Lists whose entries have a key, by path."""
    sets: tuple[str, ...] = ()
    """Lists in which nothing comes twice."""


def _condition(of: str, what: str) -> str:
    return f'.status.conditions[?(@.type=="{of}")].{what}'


_AGE = Column("AGE", "date", ".metadata.creationTimestamp", "Since it was made.")

KINDS: tuple[Kind, ...] = (
    Kind(
        kind="SharedKVDeployment",
        plural="sharedkvdeployments",
        short="skv",
        about="A shared-KV serving stack: prefill groups with one cache each, decode engines and routers.",
        spec=SharedKVDeploymentSpec,
        status=SharedKVDeploymentStatus,
        # A version has one scale subresource: decode's. Prefill scales by its SharedKVRole.
        scale=Scale(".spec.decode.replicas", ".status.decode.replicas", ".status.decodeSelector"),
        columns=(
            Column("MODEL", "string", ".spec.model.name", "Name in requests."),
            Column("PREFILL", "string", ".status.prefill.pods", "Prefill groups: ready of wanted."),
            Column("DECODE", "string", ".status.decode.pods", "Decode pods: ready of wanted."),
            Column("ROUTER", "string", ".status.router.pods", "Router pods: ready of wanted."),
            Column("CONTEXT", "integer", ".status.capacity.maxContext", "Longest request in tokens."),
            Column("TOKENS", "integer", ".status.capacity.tokensShared", "KV tokens of one prefill group."),
            Column("AVAILABLE", "string", _condition("Available", "status"), "Whether requests are served."),
            Column("REASON", "string", _condition("Available", "reason"), "Why, or why not."),
            _AGE,
            Column("PROGRESSING", "string", _condition("Progressing", "reason"), "What goes on.", wide=True),
            Column("DEGRADED", "string", _condition("Degraded", "reason"), "What is wrong.", wide=True),
            Column("WIRE", "string", ".status.contract.wire", "Hash that pairs are made by.", wide=True),
            Column("ENDPOINT", "string", ".status.endpoint", "Address for clients.", wide=True),
        ),
        rules=DEPLOYMENT_RULES,
        keyed={
            "spec.engine.env": "name",
            "spec.prefill.env": "name",
            "spec.decode.env": "name",
            "spec.pods.imagePullSecrets": "name",
            "status.conditions": "type",
        },
        sets=("spec.transfer.rdma.devices",),
    ),
    Kind(
        kind="SharedKVRole",
        plural="sharedkvroles",
        short="skvr",
        about="The scale of one role of a SharedKVDeployment, which an autoscaler may own. "
        "The operator makes it; nobody else should.",
        spec=SharedKVRoleSpec,
        status=SharedKVRoleStatus,
        scale=Scale(".spec.replicas", ".status.replicas", ".status.selector"),
        columns=(
            Column("WANTED", "integer", ".spec.replicas", "Replicas asked for."),
            Column("REPLICAS", "integer", ".status.replicas", "Pods that are there."),
            Column("READY", "integer", ".status.ready", "Pods that are ready."),
            _AGE,
        ),
        rules=ROLE_RULES,
        keyed={},
    ),
)
