"""The whole plan for one deployment: what is wanted and what is there in, actions and a status out.

Level-triggered: it looks at what is, never at what happened, so that it does not matter when or how often it
is made, nor what became of the one before. Its order: what others depend on, workloads, deletes, gates, the
status, news. No action needs the success of an earlier one to be safe; a refused one is tried again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from plait.contract.shape import ModelShape
from plait.contract.violation import ContractError, Violation
from plait_operator import names
from plait_operator.actions import Action, Plan, SetFinalizer, WriteStatus
from plait_operator.api.resource import SharedKVDeployment
from plait_operator.capacity import context_length_of, contract_of, shape_of
from plait_operator.children.context import Context, Release
from plait_operator.children.revision import revision
from plait_operator.observed import Observed
from plait_operator.plan.children import engine_children, static_children, unwanted
from plait_operator.plan.engines import role_state, role_view, router_view
from plait_operator.plan.events import events
from plait_operator.plan.gates import gates
from plait_operator.plan.inspect import Inspection, inspect
from plait_operator.plan.removal import removal
from plait_operator.plan.roles import ROLES, Budget, Role, RoleState
from plait_operator.plan.rollout import step
from plait_operator.plan.scaling import role_ref, wanted
from plait_operator.status.compose import role_status_of, status_json, status_of
from plait_operator.status.inputs import View
from plait_operator.validate import validate_spec

_WIRE_DIGITS = 16


@dataclass
class _Draft:
    """A plan in the making."""

    deployment: SharedKVDeployment
    observed: Observed
    actions: list[Action] = field(default_factory=list)
    context: Context | None = None
    violations: tuple[Violation, ...] = ()
    inspection: Inspection = field(default_factory=lambda: Inspection("known"))
    targets: dict[Role, str] = field(default_factory=lambda: {"prefill": "", "decode": ""})
    stuck: str = ""
    rolling: bool = False
    again_s: float | None = None

    def states(self) -> dict[Role, RoleState]:
        """Both engine roles as they are."""
        contract = None if self.context is None else self.context.contract
        meta, spec = self.deployment.meta, self.deployment.spec
        return {
            role: role_state(
                self.observed,
                role,
                deployment=meta.name,
                target=self.targets[role],
                wire="" if contract is None else contract.wire.hash[:_WIRE_DIGITS],
                wanted=wanted(self.deployment, self.observed, role),
                gated=spec.router.replicas > 0,
            )
            for role in ROLES
        }


def make_plan(deployment: SharedKVDeployment, observed: Observed, release: Release) -> Plan:
    """What to do next about `deployment`, and when to look again though nothing is told.

    `observed.children` must hold what the answers to earlier writes said: a plan that does not see its own
    last step may take the same one again, which changes nothing, but must not take another one beside it.
    """
    draft = _Draft(deployment, observed)
    if deployment.meta.deleting:
        return _remove(draft, release)
    if names.FINALIZER not in deployment.meta.finalizers:
        draft.actions.append(SetFinalizer(present=True))
    shape = _know(draft, release)
    # A spec that may not run changes nothing: what runs goes on as it is.
    if not draft.violations:
        _bring_about(draft, release, shape)
    draft.actions += gates(observed)
    _tell(draft)
    return Plan(tuple(draft.actions), again_s=draft.again_s)


def _know(draft: _Draft, release: Release) -> ModelShape | None:
    """The model's shape, and all that is wrong with the spec."""
    spec = draft.deployment.spec
    found = inspect(draft.deployment, draft.observed, release)
    shape, faults = None, list[Violation]()
    try:
        shape = shape_of(spec, found.config)
    except ContractError as error:
        faults += error.violations
    rules = validate_spec(spec, shape=shape, experimental=release.experimental)
    told = {violation.field for violation in rules}
    faults = [*rules, *(fault for fault in faults if fault.field not in told)]
    if spec.prefill.nodes_per_group > 1 and "LeaderWorkerSet" not in draft.observed.apis:
        count, fix = spec.prefill.nodes_per_group, "install LeaderWorkerSet, or nodesPerGroup: 1"
        faults.append(
            Violation("spec.prefill.nodesPerGroup", count, "this cluster has no LeaderWorkerSet", fix)
        )
    draft.violations = tuple(faults)
    if faults and found.state != "known":
        found = Inspection("running", message="config.json is read once the rest of the spec may be")
    draft.inspection = found
    draft.again_s = found.again_s
    return shape


def _bring_about(draft: _Draft, release: Release, shape: ModelShape | None) -> None:
    deployment, observed, spec = draft.deployment, draft.observed, draft.deployment.spec
    known = shape is not None
    ctx = Context(
        deployment=deployment,
        release=release,
        shape=shape,
        contract=contract_of(spec, shape) if shape is not None else None,
        context_length=context_length_of(spec, shape) if shape is not None else 0,
        apis=observed.apis,
    )
    draft.actions += draft.inspection.actions
    static, keep = static_children(ctx, observed)
    draft.actions += static
    if not known:
        return
    draft.context = ctx
    for role in ROLES:
        draft.targets[role] = revision(ctx, role)
    states = draft.states()
    budget = Budget(spec.rollout.max_unavailable, spec.rollout.max_surge)
    told = step(states["prefill"], states["decode"], budget)
    draft.stuck, draft.rolling = told.stuck, told.rolling
    engines, more = engine_children(ctx, observed, told, draft.targets)
    draft.actions += engines
    draft.actions += unwanted(observed, keep | more | draft.inspection.wanted)


def _tell(draft: _Draft, *, removing: bool = False) -> None:
    """Status of the deployment and of its role, and the news, where they differ from what is written."""
    deployment, observed = draft.deployment, draft.observed
    states = draft.states()
    router = router_view(
        observed,
        name=names.short(deployment.meta.name, "router"),
        wanted=deployment.spec.router.replicas,
    )
    view = View(
        prefill=role_view(states, "prefill"),
        decode=role_view(states, "decode"),
        router=router,
        violations=draft.violations,
        inspect=draft.inspection.state,
        inspect_message=draft.inspection.message,
        stuck=draft.stuck,
        rolling=draft.rolling,
        removing=removing,
    )
    role = observed.children.get(role_ref(deployment))
    told = role_status_of(view.prefill, deployment=deployment.meta.name, role="prefill")
    if role is not None and status_json(told) != (role.get("status") or {}):
        draft.actions.append(WriteStatus(status_json(told), role="prefill"))
    status = status_of(deployment, observed, draft.context, view)
    if status_json(status) != deployment.status_raw:
        draft.actions.append(WriteStatus(status_json(status)))
        draft.actions += events(deployment.status, status)


def _remove(draft: _Draft, release: Release) -> Plan:
    if names.FINALIZER not in draft.deployment.meta.finalizers:
        return Plan(())  # The rest is the garbage collector's.
    told = removal(draft.deployment, draft.observed)
    draft.actions += told.actions
    if not told.over:
        _know(draft, release)
        _tell(draft, removing=True)
    return Plan(tuple(draft.actions), again_s=told.again_s)
