"""The whole plan for one deployment: what is wanted and what is there in, actions and a status out.

Level-triggered: it looks at what is, never at what happened, so that it does not matter when or how often it
is made, nor what became of the one before. Its order: what others depend on, workloads, deletes, gates, the
status, news. No action needs the success of an earlier one to be safe; a refused one is tried again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from plait_operator import names
from plait_operator.actions import Action, Plan, SetFinalizer, WriteStatus
from plait_operator.api.resource import SharedKVDeployment
from plait_operator.children.context import Release
from plait_operator.observed import Observed
from plait_operator.plan.blueprint import Blueprint, blueprint
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

_WAITS = Inspection("running", message="config.json is read once the rest of the spec may be")


@dataclass
class _Draft:
    """A plan in the making."""

    deployment: SharedKVDeployment
    observed: Observed
    inspection: Inspection
    asked: Blueprint
    actions: list[Action] = field(default_factory=list)
    stuck: str = ""
    rolling: bool = False

    @cached_property
    def states(self) -> dict[Role, RoleState]:
        """Both engine roles as they are."""
        meta, spec = self.deployment.meta, self.deployment.spec
        return {
            role: role_state(
                self.observed,
                role,
                deployment=meta.name,
                target=self.asked.targets.get(role, ""),
                wire=self.asked.wire,
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
    if deployment.meta.deleting and names.FINALIZER not in deployment.meta.finalizers:
        return Plan(())  # The rest is the garbage collector's.
    draft = _draft(deployment, observed, release)
    if deployment.meta.deleting:
        return _remove(draft)
    if names.FINALIZER not in deployment.meta.finalizers:
        draft.actions.append(SetFinalizer(present=True))
    # A spec that may not run changes nothing: what runs goes on as it is.
    if not draft.asked.violations:
        _bring_about(draft)
    draft.actions += gates(observed)
    _tell(draft)
    return Plan(tuple(draft.actions), again_s=draft.inspection.again_s)


def _draft(deployment: SharedKVDeployment, observed: Observed, release: Release) -> _Draft:
    """What is known, and what is asked for."""
    found = inspect(deployment, observed, release)
    asked = blueprint(deployment, release, config=found.config, apis=observed.apis)
    if asked.violations and found.state != "known":
        found = _WAITS
    return _Draft(deployment, observed, found, asked)


def _bring_about(draft: _Draft) -> None:
    deployment, observed, asked = draft.deployment, draft.observed, draft.asked
    draft.actions += static_children(asked, deployment, observed)
    draft.actions += draft.inspection.actions  # The Job's pod needs its network policy.
    if not asked.targets:
        return  # The shape is not known yet. What runs goes on.
    states, rollout = draft.states, deployment.spec.rollout
    budget = Budget(rollout.max_unavailable, rollout.max_surge)
    told = step(states["prefill"], states["decode"], budget)
    draft.stuck, draft.rolling = told.stuck, told.rolling
    engines, keep = engine_children(asked, deployment, observed, told)
    draft.actions += engines
    keep |= draft.inspection.wanted
    keep.update(built.ref for built in asked.static)
    draft.actions += unwanted(observed, keep)


def _tell(draft: _Draft, *, removing: bool = False) -> None:
    """Status of the deployment and of its role, and the news, where they differ from what is written."""
    deployment, observed = draft.deployment, draft.observed
    states = draft.states
    router = router_view(
        observed,
        name=names.short(deployment.meta.name, "router"),
        wanted=deployment.spec.router.replicas,
    )
    view = View(
        prefill=role_view(states, "prefill"),
        decode=role_view(states, "decode"),
        router=router,
        violations=draft.asked.violations,
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
    context = draft.asked.context if draft.asked.targets else None
    status = status_of(deployment, observed, context, view)
    if status_json(status) != deployment.status_raw:
        draft.actions.append(WriteStatus(status_json(status)))
        draft.actions += events(deployment.status, status)


def _remove(draft: _Draft) -> Plan:
    told = removal(draft.deployment, draft.observed)
    draft.actions += told.actions
    if not told.over:
        _tell(draft, removing=True)
    return Plan(tuple(draft.actions), again_s=told.again_s)
