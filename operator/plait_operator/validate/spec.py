"""All rules of a spec, one list. Every rule is told, whatever the others said."""

from __future__ import annotations

from collections.abc import Set

from plait.contract.shape import ModelShape
from plait.contract.violation import ContractError, Violation
from plait_operator.api.spec import SharedKVDeploymentSpec
from plait_operator.capacity import estimate
from plait_operator.validate.cluster import (
    cache_violations,
    group_violations,
    image_violations,
    pods_violations,
    transfer_violations,
)
from plait_operator.validate.contract import contract_violations
from plait_operator.validate.environment import environment_violations
from plait_operator.validate.model import model_violations
from plait_operator.validate.pod_template import ENGINE, ROUTER, template_violations
from plait_operator.validate.resources import resource_violations
from plait_operator.validate.router import router_violations
from plait_operator.validate.scaling import autoscaling_violations, count_violations, rollout_violations


def validate_spec(
    spec: SharedKVDeploymentSpec,
    *,
    shape: ModelShape | None,
    experimental: frozenset[str] = frozenset(),
) -> list[Violation]:
    """Every reason why `spec` may not run; [] when it may. Fields are paths of the manifest.

    `shape` None: it is not known before the model's config.json has been read; what depends on it is then
    checked when it is. `experimental`: features of the operator that let through what no test has shown.
    """
    found = [
        *model_violations(spec, shape=shape),
        *image_violations(spec),
        *cache_violations(spec),
        *contract_violations(spec, shape=shape, experimental=experimental),
        *group_violations(spec),
        *transfer_violations(spec),
        *environment_violations(spec),
        *resource_violations(spec),
        *router_violations(spec),
        *count_violations(spec),
        *rollout_violations(spec),
        *autoscaling_violations(spec),
        *pods_violations(spec),
        *template_violations(spec.prefill.pod_template, path="spec.prefill.podTemplate", main=ENGINE),
        *template_violations(spec.decode.pod_template, path="spec.decode.podTemplate", main=ENGINE),
        *template_violations(spec.router.pod_template, path="spec.router.podTemplate", main=ROUTER),
    ]
    return found + _capacity(spec, shape, {v.field for v in found})


# What the estimate is made from: with one of these wrong there is nothing to estimate.
_SIZES = ("spec.model", "spec.engine", "spec.cache", "spec.prefill", "spec.transfer")


def _capacity(spec: SharedKVDeploymentSpec, shape: ModelShape | None, told: Set[str]) -> list[Violation]:
    if shape is None or any(field.startswith(_SIZES) for field in told):
        return []
    try:
        estimate(spec, shape)
    except ContractError as error:
        return list(error.violations)
    return []
