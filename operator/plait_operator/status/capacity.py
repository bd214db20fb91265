"""Capacity as the status shows it: estimated until engines have reported theirs."""

from __future__ import annotations

from typing import NamedTuple

from plait.contract.violation import ContractError
from plait_operator.api.resource import SharedKVDeployment
from plait_operator.api.status import Capacity
from plait_operator.capacity import active_tokens, decode_weights, reported
from plait_operator.children.context import Context
from plait_operator.observed import Observed
from plait_operator.status.problems import pods_of

TOLERANCE = 0.25
"""Part of the estimate that a report may differ by: activations, graphs and NCCL buffers are not planned."""


class Told(NamedTuple):
    """`capacity`: None when nothing can be said. `mismatch`, `misfit`: in words, empty where all is well."""

    capacity: Capacity | None
    mismatch: str = ""
    misfit: str = ""


def decode_misfit(deployment: SharedKVDeployment, context: Context | None) -> str:
    """Why decode pods cannot hold the weights, by estimate; empty where they can or nothing is known."""
    if context is None or context.shape is None:
        return ""
    told = decode_weights(deployment.spec, context.shape)
    return "" if told is None else told.misfit


def capacity_of(
    deployment: SharedKVDeployment, observed: Observed, context: Context | None, *, revision: str
) -> Told:
    """What a prefill group holds. `revision`: of the prefill pods whose reports count.

    While no router answers, the last report stays, as long as the contract is the one that it was made under.
    """
    if context is None or context.shape is None or context.contract is None:
        return Told(deployment.status.capacity)
    spec, misfit = deployment.spec, ""
    planned: Capacity | None = None
    try:
        planned = context.planned
    except ContractError as error:
        misfit = str(error.violations[0])
    tokens = _reported(observed, revision)
    before = deployment.status.capacity
    if tokens:
        try:
            said = reported(spec, context.shape, tokens=tokens)
        except ContractError as error:
            return Told(planned, str(error.violations[0]), misfit)
        return Told(said, _mismatch(deployment, planned, said), misfit)
    same = deployment.status.contract.group == context.hashes[1]
    if before is not None and before.source == "reported" and same:
        return Told(before, _mismatch(deployment, planned, before), misfit)
    return Told(planned, "", misfit)


def _reported(observed: Observed, revision: str) -> int:
    """Tokens that the smallest prefill group of `revision` has told routers of; 0: none has."""
    if not revision:
        return 0
    uids = {pod.uid for pod in pods_of(observed, role="prefill", revision=revision)}
    told = [
        engine.tokens
        for router in observed.routers
        for engine in router.engines
        if engine.tokens > 0 and engine.identity.partition("/")[0] in uids
    ]
    return min(told, default=0)


def _mismatch(deployment: SharedKVDeployment, planned: Capacity | None, said: Capacity) -> str:
    if planned is None:
        return ""
    layout = deployment.spec.cache.layout
    expected, told = active_tokens(planned, layout=layout), active_tokens(said, layout=layout)
    if abs(told - expected) <= TOLERANCE * expected:
        return ""
    return (
        f"prefill groups report {told} tokens, the sizes lead to expect {expected}. Fix: look for what else "
        "uses the GPUs' memory, or set spec.prefill.maxTotalTokens"
    )
