"""Which pods are alike: the template of a role, its contract, and the digits that name both."""

from __future__ import annotations

import hashlib
import json
from typing import Final, Literal, cast

from plait.contract.contract_file import CONTRACT_FILE, ContractFile
from plait_operator import names
from plait_operator.children.context import Context
from plait_operator.children.meta import meta
from plait_operator.children.pod import contract, pod
from plait_operator.observed import Manifest

_DIGITS: Final = 8
_UNNAMED: Final = "contract"
"""Stands for the ConfigMap's name while the revision, which is part of that name, is being made."""


def revision(ctx: Context, role: str) -> str:
    """8 hex digits over the template and contract of `role`, equal in any process.

    Neither the other role nor replicas, rollout budgets, autoscaling or the router move it.
    rollout.drainSeconds does: pods carry it, and cannot be told another one.
    """
    if (known := ctx.revisions.get(role)) is not None:
        return known
    told = json.dumps(
        [pod(ctx, role, contract_map=_UNNAMED), _contract_text(ctx, role), _hosts(ctx, role)],
        sort_keys=True,
        separators=(",", ":"),
    )
    return ctx.revisions.setdefault(role, hashlib.sha256(told.encode()).hexdigest()[:_DIGITS])


def template(ctx: Context, role: str, *, worker: bool = False) -> Manifest:
    """PodTemplateSpec of the pods of `role`, without the revision's label. `worker`: see `pod`."""
    name = contract_map_name(ctx, role, revision(ctx, role))
    return pod(ctx, role, contract_map=name, worker=worker)


def contract_map_name(ctx: Context, role: str, digits: str) -> str:
    """Name of the ConfigMap with the contract of `role` at revision `digits`."""
    return names.short(ctx.deployment.meta.name, role, digits, "contract")


def contract_map(ctx: Context, role: str) -> Manifest:
    """ConfigMap with what an engine of this revision must find itself to be. Never changed, only replaced."""
    digits = revision(ctx, role)
    metadata = meta(ctx.deployment, contract_map_name(ctx, role, digits), role=role)
    metadata["labels"][names.REVISION] = digits
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "immutable": True,
        "data": {CONTRACT_FILE: _contract_text(ctx, role)},
    }


def _contract_text(ctx: Context, role: str) -> str:
    told = ContractFile.of(contract(ctx), role=cast(Literal["prefill", "decode"], role))
    return json.dumps(told.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))


def _hosts(ctx: Context, role: str) -> int:
    return ctx.deployment.spec.prefill.nodes_per_group if role == "prefill" else 1
