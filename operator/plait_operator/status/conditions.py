"""The nine conditions, in the order in which they come true. Each says why.

Nothing here depends on time, ages or requests under way: what has not changed gives the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from plait_operator.api.reasons import Reason
from plait_operator.api.resource import SharedKVDeployment
from plait_operator.api.status import Condition, ConditionType
from plait_operator.observed import Observed
from plait_operator.status.inputs import RoleView, View
from plait_operator.status.problems import (
    Problem,
    failed_checks,
    joined,
    pods_of,
    preflight_passed,
    problems_of,
    refusals,
)

_ROLES: Final = ("prefill", "decode", "router")
_ENGINES: Final = ("prefill", "decode")


class Finding(NamedTuple):
    """One condition before it is dated."""

    status: Literal["True", "False", "Unknown"]
    reason: Reason
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What the conditions are told. `mismatch` and below: words about capacity, empty where all is well."""

    deployment: SharedKVDeployment
    observed: Observed
    view: View
    mismatch: str = ""
    """Engines report another capacity than was estimated: both figures."""
    misfit: str = ""
    """The estimate says that the model does not fit."""
    decode_misfit: str = ""
    """The estimate says that decode pods cannot hold the weights."""

    def role(self, role: str) -> RoleView:
        """What the planner says of a role."""
        view: RoleView = getattr(self.view, role)
        return view

    def problems(self, role: str) -> list[Problem]:
        """What is wrong with a role's newest revision."""
        name = self.deployment.meta.name
        return problems_of(self.observed, deployment=name, role=role, revision=self.role(role).revision)


def conditions_of(case: Case) -> list[Condition]:
    """All conditions, dated: a transition time is kept for as long as the condition's status stays equal."""
    before = {condition.type: condition for condition in case.deployment.status.conditions}
    return [_dated(kind, find(case), case, before.get(kind.value)) for kind, find in _FINDERS]


def _dated(kind: ConditionType, found: Finding, case: Case, before: Condition | None) -> Condition:
    kept = before is not None and before.status == found.status and before.last_transition_time
    return Condition(
        type=kind.value,
        status=found.status,
        reason=found.reason.value,
        message=found.message,
        observed_generation=case.deployment.meta.generation,
        last_transition_time=before.last_transition_time if before and kept else case.observed.now,
    )


def _model_inspected(case: Case) -> Finding:
    view, model = case.view, case.deployment.spec.model
    if view.inspect == "failed":
        return Finding("False", Reason.INSPECT_FAILED, view.inspect_message)
    if view.inspect == "running":
        return Finding("False", Reason.INSPECTING, view.inspect_message or "config.json is being read")
    if model.family is not None:
        return Finding("True", Reason.KNOWN, f"family {model.family}")
    where = "spec.model.shape" if model.shape is not None else "config.json of the source"
    return Finding("True", Reason.KNOWN, where)


def _admitted(case: Case) -> Finding:
    if case.view.violations:
        return Finding("False", Reason.INVALID, _violations(case))
    if case.view.inspect != "known":
        return Finding("Unknown", Reason.NOT_CHECKED, "waits for ModelInspected")
    return Finding("True", Reason.VALID, case.misfit and f"by estimate it does not fit: {case.misfit}")


def _violations(case: Case) -> str:
    return joined(str(violation) for violation in case.view.violations)


def _role_ready(role: str) -> Callable[[Case], Finding]:
    def find(case: Case) -> Finding:
        view = case.role(role)
        if case.view.removing:
            return Finding("False", Reason.REMOVING, "the deployment is being removed")
        if view.wanted == 0:
            return Finding("False", Reason.SCALED_TO_ZERO, f"spec.{role}.replicas is 0")
        if role in _ENGINES and not view.revision:
            return Finding("Unknown", Reason.NOT_PLANNED, "see ModelInspected and Admitted")
        counts = f"{min(view.updated_ready, view.wanted)} of {view.wanted} pods"
        if view.revision:
            counts += f" of revision {view.revision}"
        counts += " are ready"
        if view.updated_ready >= view.wanted:
            return Finding("True", Reason.READY, counts)
        problems = case.problems(role)
        if problems:
            why = case.decode_misfit if role == "decode" and _ends(problems) else ""
            return Finding("False", problems[0].reason, joined([counts, why, *(p.message for p in problems)]))
        reason = Reason.CREATING if view.updated < view.wanted else Reason.NOT_READY
        return Finding("False", reason, counts)

    return find


def _ends(problems: Sequence[Problem]) -> bool:
    return any(problem.reason in (Reason.CRASH_LOOPING, Reason.RESTARTING) for problem in problems)


def _transfer_ready(case: Case) -> Finding:
    if case.view.removing:
        return Finding("False", Reason.REMOVING, "the deployment is being removed")
    wanted = {role: case.role(role).wanted for role in _ENGINES}
    if not any(wanted.values()):
        return Finding("False", Reason.SCALED_TO_ZERO, "there are to be no engine pods")
    planned = {role: view for role in _ENGINES if wanted[role] and (view := case.role(role).revision)}
    pods = {role: pods_of(case.observed, role=role, revision=revision) for role, revision in planned.items()}
    failed = [
        f"pod {pod.name}: {said}" for role in planned for pod in pods[role] if (said := failed_checks(pod))
    ]
    if failed:
        return Finding("False", Reason.PREFLIGHT_FAILED, joined(failed))
    if len(planned) < sum(1 for count in wanted.values() if count):
        return Finding("Unknown", Reason.NOT_PLANNED, "see ModelInspected and Admitted")
    waits = [role for role in planned if sum(1 for pod in pods[role] if preflight_passed(pod)) < wanted[role]]
    if waits:
        return Finding("False", Reason.PREFLIGHT_RUNNING, f"waits for pods of {' and '.join(waits)}")
    return Finding("True", Reason.PREFLIGHT_PASSED, "devices, peer mapping, versions and hooks are as asked")


def _available(case: Case) -> Finding:
    view = case.view
    if view.removing:
        return Finding("False", Reason.REMOVING, "the deployment is being removed")
    zero = [role for role in _ROLES if case.role(role).wanted == 0 and case.role(role).ready == 0]
    if zero:
        fields = " and ".join(f"spec.{role}.replicas" for role in zero)
        return Finding("False", Reason.SCALED_TO_ZERO, f"{fields} {'is' if len(zero) == 1 else 'are'} 0")
    for role, reason in zip(
        ("router", "prefill", "decode"), (Reason.NO_ROUTER, Reason.NO_PREFILL, Reason.NO_DECODE), strict=True
    ):
        if case.role(role).ready == 0:
            return Finding("False", reason, f"see {role.capitalize()}Ready")
    if view.prefill.serving == 0 or view.decode.serving == 0:
        return Finding("False", Reason.NO_PAIR, "no ready prefill and decode have the same wire hash")
    return Finding("True", Reason.SERVING, "requests are served")


def _progressing(case: Case) -> Finding:
    view = case.view
    if view.removing:
        return Finding("True", Reason.REMOVING, "routers first, then engines as they are drained")
    if view.violations:
        return Finding("False", Reason.INVALID, "see Admitted")
    if view.inspect == "failed":
        return Finding("False", Reason.INSPECT_FAILED, "see ModelInspected")
    if view.stuck:
        return Finding("False", Reason.STUCK, view.stuck)
    if view.inspect == "running":
        return Finding("True", Reason.INSPECTING, "see ModelInspected")
    if view.rolling:
        return Finding("True", Reason.ROLLING_OUT, _roles_at_work(case, lambda r: r.updated_ready < r.pods))
    if halted := _halted(case):
        return halted
    scaling = _roles_at_work(case, lambda role: role.pods != role.wanted)
    if scaling:
        return Finding("True", Reason.SCALING, scaling)
    starting = _roles_at_work(case, lambda role: role.updated_ready < role.wanted)
    if starting:
        return Finding("True", Reason.STARTING, starting)
    return Finding("False", Reason.COMPLETE, "all is as the spec asks")


def _halted(case: Case) -> Finding | None:
    """What keeps a role from its replicas and does not end by itself. A rollout tells this as `stuck`."""
    for role in _ROLES:
        if case.role(role).updated_ready < case.role(role).wanted:
            for problem in case.problems(role):
                if problem.reason.lasting:
                    return Finding("False", problem.reason, f"see {role.capitalize()}Ready")
    return None


def _roles_at_work(case: Case, at_work: Callable[[RoleView], bool]) -> str:
    return ", ".join(role for role in _ROLES if at_work(case.role(role)))


def _degraded(case: Case) -> Finding:
    found = [Problem(reason, text) for reason, text in _lasting(case)]
    if not found:
        return Finding("False", Reason.HEALTHY, "")
    return Finding("True", found[0].reason, joined(problem.message for problem in found))


def _lasting(case: Case) -> Sequence[tuple[Reason, str]]:
    """All that does not end by itself, the causes before their consequences."""
    view = case.view
    if view.removing:
        return [(p.reason, p.message) for p in refusals(case.observed)]
    found: list[tuple[Reason, str]] = []
    if view.violations:
        found.append((Reason.INVALID, _violations(case)))
    if view.inspect == "failed":
        found.append((Reason.INSPECT_FAILED, view.inspect_message))
    for role in _ROLES:
        if case.role(role).wanted:
            found += [(p.reason, f"{role}: {p.message}") for p in case.problems(role) if p.reason.lasting]
    known = " ".join(text for _, text in found)
    found += [(p.reason, p.message) for p in refusals(case.observed) if p.message not in known]
    if view.stuck:
        found.append((Reason.STUCK, view.stuck))
    if case.mismatch:
        found.append((Reason.CAPACITY_MISMATCH, case.mismatch))
    return found


_FINDERS: Final[tuple[tuple[ConditionType, Callable[[Case], Finding]], ...]] = (
    (ConditionType.MODEL_INSPECTED, _model_inspected),
    (ConditionType.ADMITTED, _admitted),
    (ConditionType.PREFILL_READY, _role_ready("prefill")),
    (ConditionType.DECODE_READY, _role_ready("decode")),
    (ConditionType.TRANSFER_READY, _transfer_ready),
    (ConditionType.ROUTER_READY, _role_ready("router")),
    (ConditionType.AVAILABLE, _available),
    (ConditionType.PROGRESSING, _progressing),
    (ConditionType.DEGRADED, _degraded),
)
