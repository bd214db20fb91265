"""What holds for every step from every state, whether it could come about or not."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from plait_operator.plan.roles import OTHER, ROLES, Budget, RevisionState, Role, RoleState, Step
from plait_operator.plan.rollout import step

NAMES = ["a1", "a2", "b1", "c1"]


@st.composite
def revisions(draw: st.DrawFn, name: str) -> RevisionState:
    replicas = draw(st.integers(0, 5))
    pods = draw(st.integers(0, 6))
    ready = draw(st.integers(0, pods))
    return RevisionState(
        revision=name,
        wire=name[0],
        replicas=replicas,
        reported=draw(st.integers(0, 6)),
        settled=draw(st.booleans()),
        pods=pods,
        deleting=draw(st.integers(0, 2)),
        ready=ready,
        failing=draw(st.integers(0, pods - ready)),
    )


@st.composite
def states(draw: st.DrawFn) -> tuple[dict[Role, RoleState], Budget]:
    wire = draw(st.sampled_from("abc"))
    roles: dict[Role, RoleState] = {}
    for role in ROLES:
        names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=3))
        target = draw(st.sampled_from([name for name in NAMES if name[0] == wire]))
        told = tuple(draw(revisions(name)) for name in names)
        roles[role] = RoleState(wanted=draw(st.integers(0, 4)), target=target, wire=wire, revisions=told)
    return roles, Budget(draw(st.integers(0, 2)), draw(st.integers(0, 2)))


def ready(roles: dict[Role, RoleState], role: Role, told: Step | None) -> dict[str, int]:
    """Ready pods per wire that are left for sure: the workloads let go of those that are not ready first."""
    counts: dict[str, int] = {}
    for one in roles[role].revisions:
        replicas = one.replicas if told is None else told.of(role).get(one.revision, 0)
        counts[one.wire] = counts.get(one.wire, 0) + min(one.ready, one.replicas, replicas)
    return counts


def serving(roles: dict[Role, RoleState], role: Role, told: Step | None) -> int:
    theirs = ready(roles, OTHER[role], told)
    return sum(count for wire, count in ready(roles, role, told).items() if theirs.get(wire))


@settings(max_examples=250, deadline=None)
@given(states())
def test_no_step_takes_what_must_serve(given_: tuple[dict[Role, RoleState], Budget]) -> None:
    roles, budget = given_
    told = step(roles["prefill"], roles["decode"], budget)
    for role in ROLES:
        if roles[OTHER[role]].wanted == 0:
            continue
        floor = max(0, roles[role].wanted - budget.max_unavailable)
        assert serving(roles, role, told) >= min(serving(roles, role, None), floor)


@settings(max_examples=250, deadline=None)
@given(states())
def test_no_step_makes_more_than_may_be(given_: tuple[dict[Role, RoleState], Budget]) -> None:
    roles, budget = given_
    told = step(roles["prefill"], roles["decode"], budget)
    for role in ROLES:
        raised = [
            one.revision for one in roles[role].revisions if told.of(role).get(one.revision, 0) > one.replicas
        ]
        there = sum(
            max(one.pods, one.reported, one.replicas, told.of(role).get(one.revision, 0)) + one.deleting
            for one in roles[role].revisions
        )
        if raised:
            assert there <= roles[role].wanted + budget.max_surge
            assert len(raised) == 1


@settings(max_examples=250, deadline=None)
@given(states())
def test_a_step_is_not_taken_back(given_: tuple[dict[Role, RoleState], Budget]) -> None:
    """Carried out, and nothing else happened yet: the next plan is the same, or goes on the same way."""
    roles, budget = given_
    first = step(roles["prefill"], roles["decode"], budget)
    after = {
        role: replace(
            state,
            revisions=tuple(
                replace(
                    one,
                    replicas=first.of(role).get(one.revision, 0),
                    settled=one.settled and one.replicas == first.of(role).get(one.revision, 0),
                )
                for one in state.revisions
            ),
        )
        for role, state in roles.items()
    }
    second = step(after["prefill"], after["decode"], budget)
    for role in ROLES:
        for one in roles[role].revisions:
            before = one.replicas
            then = first.of(role).get(one.revision, 0)
            later = second.of(role).get(one.revision, 0)
            if then > before:
                assert later >= then
            if then < before:
                assert later <= then


@settings(max_examples=100, deadline=None)
@given(states())
def test_a_target_is_never_over_and_old_ones_only_when_empty(
    given_: tuple[dict[Role, RoleState], Budget],
) -> None:
    roles, budget = given_
    told = step(roles["prefill"], roles["decode"], budget)
    for role in ROLES:
        assert roles[role].target not in told.finished[role]
        for one in roles[role].revisions:
            if one.revision in told.finished[role]:
                assert (one.pods, one.deleting, one.replicas, one.reported) == (0, 0, 0, 0)
