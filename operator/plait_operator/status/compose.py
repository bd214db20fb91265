"""The whole status of a deployment."""

from __future__ import annotations

from plait_operator import names
from plait_operator.api.resource import SharedKVDeployment
from plait_operator.api.status import Hashes, RoleStatus, SharedKVDeploymentStatus, SharedKVRoleStatus
from plait_operator.children.context import Context
from plait_operator.observed import Manifest, Observed
from plait_operator.status.capacity import capacity_of, decode_misfit
from plait_operator.status.conditions import Case, conditions_of
from plait_operator.status.inputs import RoleView, View


def status_of(
    deployment: SharedKVDeployment, observed: Observed, context: Context | None, view: View
) -> SharedKVDeploymentStatus:
    """What there is, by one look. `context`: None while the model's shape is not known or the spec refused.

    Equal input gives an equal status, and so does input in which nothing of weight has changed: it holds no
    ages and no counts of requests. `observed.now` only dates conditions whose status has changed.
    """
    told = capacity_of(deployment, observed, context, revision=view.prefill.revision)
    case = Case(
        deployment=deployment,
        observed=observed,
        view=view,
        mismatch=told.mismatch,
        misfit=told.misfit,
        decode_misfit=decode_misfit(deployment, context),
    )
    hashes = deployment.status.contract
    if context is not None and context.contract is not None:
        wire, group = context.hashes
        hashes = Hashes(wire=wire, group=group)
    return SharedKVDeploymentStatus(
        observed_generation=deployment.meta.generation,
        conditions=conditions_of(case),
        capacity=told.capacity,
        contract=hashes,
        prefill=_role(view.prefill),
        decode=_role(view.decode),
        router=_role(view.router),
        decode_selector=selector_text(deployment.meta.name, role="decode"),
        endpoint=endpoint(deployment),
    )


def status_json(status: SharedKVDeploymentStatus | SharedKVRoleStatus) -> Manifest:
    """As it is stored: camelCase, without what is not known."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def role_status_of(view: RoleView, *, deployment: str, role: str) -> SharedKVRoleStatus:
    """Status of the SharedKVRole of `role`: what its scale subresource tells an autoscaler."""
    return SharedKVRoleStatus(
        replicas=view.pods, ready=view.ready, selector=selector_text(deployment, role=role)
    )


def selector_text(deployment: str, *, role: str) -> str:
    """Label selector of a role's pods, over all revisions, as a scale subresource has it."""
    return ",".join(f"{key}={value}" for key, value in sorted(names.selector(deployment, role=role).items()))


def endpoint(deployment: SharedKVDeployment) -> str:
    """Address of the routers for clients inside the cluster."""
    router, meta = deployment.spec.router, deployment.meta
    scheme, usual = ("https", 443) if router.tls is not None else ("http", 80)
    port = "" if router.service.port == usual else f":{router.service.port}"
    return f"{scheme}://{meta.name}.{meta.namespace}.svc{port}"


def _role(view: RoleView) -> RoleStatus:
    return RoleStatus(
        replicas=view.pods,
        ready=view.ready,
        available=view.serving,
        updated=view.updated,
        pods=f"{view.ready}/{view.wanted}",
        revision=view.revision,
    )
