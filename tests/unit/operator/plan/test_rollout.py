"""One step from one state, as a table; properties of every step, and whole rollouts, in its neighbours."""

# ruff: noqa: E501

from __future__ import annotations

import pytest

from plait_operator.plan.roles import Budget, RevisionState, RoleState
from plait_operator.plan.rollout import step

SURGE = Budget(max_unavailable=0, max_surge=1)
DIP = Budget(max_unavailable=1, max_surge=0)
BOTH = Budget(max_unavailable=1, max_surge=1)


def rev(
    name: str, replicas: int, ready: int | None = None, *, pods: int | None = None, **more: object
) -> RevisionState:
    """A revision whose wire is its first letter; by default all its pods are there and ready."""
    pods = replicas if pods is None else pods
    return RevisionState(
        revision=name,
        wire=name[0],
        replicas=replicas,
        reported=more.pop("reported", pods),  # type: ignore[arg-type]
        pods=pods,
        ready=min(pods, replicas) if ready is None else ready,
        **more,  # type: ignore[arg-type]
    )


def role(wanted: int, target: str, *revisions: RevisionState) -> RoleState:
    return RoleState(wanted=wanted, target=target, wire=target[0], revisions=revisions)


ROWS = [
    # (name, prefill, decode, budget, prefill's replicas next, decode's replicas next)
    ("nothing there: all at once", role(2, "a1"), role(4, "a1"), SURGE, {"a1": 2}, {"a1": 4}),
    ("done", role(2, "a1", rev("a1", 2)), role(4, "a1", rev("a1", 4)), SURGE, {"a1": 2}, {"a1": 4}),
    ("done, not ready", role(2, "a1", rev("a1", 2, 0)), role(4, "a1", rev("a1", 4, 1)), SURGE, {"a1": 2}, {"a1": 4}),
    # One role's own change: the other one is left alone.
    ("own change: surge", role(2, "a1", rev("a1", 2)), role(4, "a2", rev("a1", 4)), SURGE, {"a1": 2}, {"a1": 4, "a2": 1}),
    ("own change: new starts", role(2, "a1", rev("a1", 2)), role(4, "a2", rev("a1", 4), rev("a2", 1, 0)), SURGE, {"a1": 2}, {"a1": 4, "a2": 1}),
    ("own change: new ready", role(2, "a1", rev("a1", 2)), role(4, "a2", rev("a1", 4), rev("a2", 1)), SURGE, {"a1": 2}, {"a1": 3, "a2": 1}),
    ("own change: old is going", role(2, "a1", rev("a1", 2)), role(4, "a2", rev("a1", 3, deleting=1), rev("a2", 1)), SURGE, {"a1": 2}, {"a1": 3, "a2": 1}),
    ("own change: old is gone", role(2, "a1", rev("a1", 2)), role(4, "a2", rev("a1", 3), rev("a2", 1)), SURGE, {"a1": 2}, {"a1": 3, "a2": 2}),
    ("own change: last", role(2, "a1", rev("a1", 2)), role(4, "a2", rev("a1", 1), rev("a2", 4)), SURGE, {"a1": 2}, {"a1": 0, "a2": 4}),
    ("own change: surge of 3", role(2, "a1", rev("a1", 2)), role(4, "a2", rev("a1", 4)), Budget(0, 3), {"a1": 2}, {"a1": 4, "a2": 3}),
    ("own change: 3 ready of 3", role(2, "a1", rev("a1", 2)), role(4, "a2", rev("a1", 4), rev("a2", 3)), Budget(0, 3), {"a1": 2}, {"a1": 1, "a2": 3}),
    ("own change: without surge", role(2, "a1", rev("a1", 2)), role(4, "a2", rev("a1", 4)), DIP, {"a1": 2}, {"a1": 3, "a2": 0}),
    ("own change: without surge, gone", role(2, "a1", rev("a1", 2)), role(4, "a2", rev("a1", 3), rev("a2", 0)), DIP, {"a1": 2}, {"a1": 3, "a2": 1}),
    ("own change: surge before the dip", role(2, "a1", rev("a1", 2)), role(4, "a2", rev("a1", 4)), BOTH, {"a1": 2}, {"a1": 4, "a2": 1}),
    ("own change: no node for the surge, so a dip", role(2, "a1", rev("a1", 2)), role(4, "a2", rev("a1", 4), rev("a2", 1, 0)), BOTH, {"a1": 2}, {"a1": 3, "a2": 1}),
    ("own change of both", role(2, "a2", rev("a1", 2)), role(4, "a2", rev("a1", 4)), SURGE, {"a1": 2, "a2": 1}, {"a1": 4, "a2": 1}),
    # A new wire: both roles, in lockstep.
    ("wire: first pods", role(2, "b1", rev("a1", 2)), role(4, "b1", rev("a1", 4)), SURGE, {"a1": 2, "b1": 1}, {"a1": 4, "b1": 1}),
    ("wire: prefill is ready, alone it serves nothing", role(2, "b1", rev("a1", 2), rev("b1", 1)), role(4, "b1", rev("a1", 4), rev("b1", 1, 0)), SURGE, {"a1": 2, "b1": 1}, {"a1": 4, "b1": 1}),
    ("wire: first pair serves: decode leads, by a step of prefill", role(2, "b1", rev("a1", 2), rev("b1", 1)), role(4, "b1", rev("a1", 4), rev("b1", 1)), SURGE, {"a1": 1, "b1": 1}, {"a1": 3, "b1": 1}),
    ("wire: decode may not run ahead", role(5, "b1", rev("a1", 4), rev("b1", 1)), role(4, "b1", rev("a1", 3), rev("b1", 2)), SURGE, {"a1": 4, "b1": 2}, {"a1": 3, "b1": 2}),
    ("wire: the last old prefill holds three old decodes", role(2, "b1", rev("a1", 1), rev("b1", 2)), role(4, "b1", rev("a1", 3), rev("b1", 1)), SURGE, {"a1": 1, "b1": 2}, {"a1": 3, "b1": 2}),
    ("wire: the last of both", role(2, "b1", rev("a1", 1), rev("b1", 2)), role(4, "b1", rev("a1", 1), rev("b1", 4)), SURGE, {"a1": 0, "b1": 2}, {"a1": 0, "b1": 4}),
    ("wire: one of each", role(1, "b1", rev("a1", 1)), role(1, "b1", rev("a1", 1)), SURGE, {"a1": 1, "b1": 1}, {"a1": 1, "b1": 1}),
    ("wire: one of each, prefill new is ready", role(1, "b1", rev("a1", 1), rev("b1", 1)), role(1, "b1", rev("a1", 1), rev("b1", 1, 0)), SURGE, {"a1": 1, "b1": 1}, {"a1": 1, "b1": 1}),
    ("wire: one of each, both ready", role(1, "b1", rev("a1", 1), rev("b1", 1)), role(1, "b1", rev("a1", 1), rev("b1", 1)), SURGE, {"a1": 0, "b1": 1}, {"a1": 0, "b1": 1}),
    ("wire: without surge", role(2, "b1", rev("a1", 2)), role(4, "b1", rev("a1", 4)), DIP, {"a1": 1, "b1": 0}, {"a1": 3, "b1": 0}),
    ("wire: without surge prefill's room alone is no use", role(2, "b1", rev("a1", 2)), role(1, "b1", rev("a1", 1)), DIP, {"a1": 2, "b1": 0}, {"a1": 1, "b1": 0}),
    ("wire: one of each, without surge: the user allows it", role(1, "b1", rev("a1", 1)), role(1, "b1", rev("a1", 1)), DIP, {"a1": 0, "b1": 0}, {"a1": 0, "b1": 0}),
    ("wire: an old decode that serves nothing may go", role(1, "b1", rev("b1", 1)), role(2, "b1", rev("a1", 2), rev("b1", 1)), SURGE, {"b1": 1}, {"a1": 0, "b1": 1}),
    # Back, and on, in the middle.
    ("revert mid-way", role(2, "a1", rev("a1", 1), rev("b1", 2)), role(4, "a1", rev("a1", 3), rev("b1", 2)), SURGE, {"a1": 1, "b1": 1}, {"a1": 3, "b1": 1}),
    ("revert before anything was ready", role(2, "a1", rev("a1", 2), rev("b1", 1, 0)), role(4, "a1", rev("a1", 4), rev("b1", 1, 0)), SURGE, {"a1": 2, "b1": 0}, {"a1": 4, "b1": 0}),
    ("a third before the second was ready", role(2, "c1", rev("a1", 2), rev("b1", 1, 0)), role(4, "c1", rev("a1", 4), rev("b1", 1, 0)), SURGE, {"a1": 2, "b1": 0, "c1": 0}, {"a1": 4, "b1": 0, "c1": 0}),
    ("a third while two serve", role(2, "c1", rev("a1", 1), rev("b1", 1)), role(4, "c1", rev("a1", 2), rev("b1", 2)), SURGE, {"a1": 1, "b1": 1, "c1": 1}, {"a1": 2, "b1": 2, "c1": 1}),
    ("two that hold each other up: one is made whole", role(1, "c1", rev("a1", 1), rev("b1", 1)), role(2, "c1", rev("a1", 1), rev("b1", 1)), SURGE, {"a1": 1, "b1": 1, "c1": 0}, {"a1": 1, "b1": 2, "c1": 0}),
    # Scale.
    ("up", role(2, "a1", rev("a1", 2)), role(8, "a1", rev("a1", 4)), SURGE, {"a1": 2}, {"a1": 8}),
    ("down", role(2, "a1", rev("a1", 2)), role(2, "a1", rev("a1", 4)), SURGE, {"a1": 2}, {"a1": 2}),
    ("down in a rollout: old goes first", role(2, "a1", rev("a1", 2)), role(2, "a2", rev("a1", 2), rev("a2", 2)), SURGE, {"a1": 2}, {"a1": 0, "a2": 2}),
    ("up in a rollout: only new", role(2, "a1", rev("a1", 2)), role(6, "a2", rev("a1", 3), rev("a2", 1)), SURGE, {"a1": 2}, {"a1": 3, "a2": 4}),
    ("to zero", role(0, "a1", rev("a1", 2)), role(0, "a1", rev("a1", 4)), SURGE, {"a1": 0}, {"a1": 0}),
    ("decode to zero: prefill stays", role(2, "a1", rev("a1", 2)), role(0, "a1", rev("a1", 4)), SURGE, {"a1": 2}, {"a1": 0}),
    ("decode from zero", role(2, "a1", rev("a1", 2)), role(4, "a1", rev("a1", 0)), SURGE, {"a1": 2}, {"a1": 4}),
    ("decode from zero, pods are still ending", role(2, "a1", rev("a1", 2)), role(4, "a1", rev("a1", 0, deleting=4)), SURGE, {"a1": 2}, {"a1": 1}),
    ("wire while decode is at zero: prefill as carefully as ever", role(2, "b1", rev("a1", 2)), role(0, "b1", rev("a1", 0)), SURGE, {"a1": 2, "b1": 1}, {"a1": 0, "b1": 0}),
    ("zero in a rollout", role(0, "b1", rev("a1", 1), rev("b1", 1)), role(0, "b1", rev("a1", 1), rev("b1", 1)), SURGE, {"a1": 0, "b1": 0}, {"a1": 0, "b1": 0}),
    # What can't be seen is taken for the worse.
    ("stale: the lowering is not seen", role(2, "a1", rev("a1", 2)), role(4, "a2", rev("a1", 3, pods=4, ready=4, settled=False), rev("a2", 1)), SURGE, {"a1": 2}, {"a1": 3, "a2": 1}),
    ("stale: new pods are not seen yet", role(2, "a1", rev("a1", 2)), role(4, "a2", rev("a1", 3), rev("a2", 2, 0, pods=0)), SURGE, {"a1": 2}, {"a1": 3, "a2": 2}),
    ("stale: no raise before the last one was seen", role(2, "a1", rev("a1", 2)), role(4, "a2", rev("a1", 3), rev("a2", 1, settled=False)), SURGE, {"a1": 2}, {"a1": 3, "a2": 1}),
    ("stale: status tells of more than is seen", role(2, "a1", rev("a1", 2)), role(4, "a2", rev("a1", 3, pods=3, reported=4), rev("a2", 1)), SURGE, {"a1": 2}, {"a1": 3, "a2": 1}),
    # Failures.
    ("old pods that fail go first", role(2, "a1", rev("a1", 2)), role(4, "a2", rev("a1", 4, 3, failing=1), rev("a2", 1, 0)), SURGE, {"a1": 2}, {"a1": 3, "a2": 1}),
    ("old pods that blink stay", role(2, "a1", rev("a1", 2)), role(4, "a2", rev("a1", 4, 2), rev("a2", 1, 0)), SURGE, {"a1": 2}, {"a1": 4, "a2": 1}),
    ("all old ones fail: they make room", role(2, "a1", rev("a1", 2)), role(4, "a2", rev("a1", 4, 0, failing=4)), SURGE, {"a1": 2}, {"a1": 0, "a2": 1}),
    ("serving is below the floor already", role(2, "a1", rev("a1", 2)), role(4, "a2", rev("a1", 3, 2), rev("a2", 2, 1)), SURGE, {"a1": 2}, {"a1": 3, "a2": 2}),
    ("partners blink: ready pods stay", role(2, "a1", rev("a1", 2, 0)), role(4, "a2", rev("a1", 4), rev("a2", 1, 0)), SURGE, {"a1": 2}, {"a1": 4, "a2": 1}),
    ("a broken target takes no more than the budget", role(2, "a1", rev("a1", 2)), role(4, "a2", rev("a1", 3), rev("a2", 2, 0, failing=2)), BOTH, {"a1": 2}, {"a1": 3, "a2": 2}),
    # Hands.
    ("scaled by hand: back", role(2, "a1", rev("a1", 2)), role(4, "a1", rev("a1", 7)), SURGE, {"a1": 2}, {"a1": 4}),
    ("an old one scaled by hand", role(2, "a1", rev("a1", 2)), role(4, "a2", rev("a1", 9), rev("a2", 0)), SURGE, {"a1": 2}, {"a1": 4, "a2": 0}),
    ("the target deleted by hand", role(2, "a1", rev("a1", 2)), role(4, "a1"), SURGE, {"a1": 2}, {"a1": 4}),
    ("an ordered set is cut from its top: index 2 is not ready", role(3, "a2", rev("a1", 3, 2, ready_at=(0, 1)), rev("a2", 1)), role(1, "a1", rev("a1", 1)), SURGE, {"a1": 2, "a2": 1}, {"a1": 1}),
    ("an ordered set is cut from its top: index 0 is not ready", role(3, "a2", rev("a1", 3, 2, ready_at=(1, 2)), rev("a2", 1)), role(1, "a1", rev("a1", 1)), SURGE, {"a1": 3, "a2": 1}, {"a1": 1}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("prefill", "decode", "budget", "p", "d"), [pytest.param(*row[1:], id=row[0]) for row in ROWS]
)
def test_next(prefill: RoleState, decode: RoleState, budget: Budget, p: dict, d: dict) -> None:
    told = step(prefill, decode, budget)
    assert (told.prefill, told.decode) == (p, d)


@pytest.mark.parametrize(
    ("prefill", "decode", "budget", "p", "d"), [pytest.param(*row[1:], id=row[0]) for row in ROWS]
)
def test_the_same_state_gives_the_same_step(
    prefill: RoleState, decode: RoleState, budget: Budget, p: dict, d: dict
) -> None:
    turned = [
        RoleState(
            wanted=one.wanted, target=one.target, wire=one.wire, revisions=tuple(reversed(one.revisions))
        )
        for one in (prefill, decode)
    ]
    told = step(*turned, budget)
    assert (told.prefill, told.decode) == (p, d)


HUGE = 2_000_000_000
"""Of an int32: what a hand, or a slip of it, can write into `replicas`."""

HUGE_ROWS = [
    ("the target", role(4, "a1", rev("a1", HUGE, pods=4)), SURGE, {"a1": 4}),
    (
        "an old revision beside a target that is ready",
        role(4, "a2", rev("a1", HUGE, pods=4), rev("a2", 4)),
        SURGE,
        {"a1": 0, "a2": 4},
    ),
    ("an old revision that serves", role(4, "a2", rev("a1", HUGE, pods=4)), SURGE, {"a1": 4, "a2": 0}),
    ("an old revision, and a dip", role(4, "a2", rev("a1", HUGE, pods=4)), DIP, {"a1": 3, "a2": 0}),
    (
        "an old wire that serves nothing",
        role(4, "a1", rev("a1", 4), rev("b1", HUGE, 0, pods=0)),
        SURGE,
        {"a1": 4, "b1": 0},
    ),
    ("as asked, and from there to four", role(4, "a1", rev("a1", HUGE)), SURGE, {"a1": 4}),
    (
        "as asked, all but none may be missing",
        role(HUGE, "a2", rev("a1", HUGE), rev("a2", HUGE)),
        Budget(HUGE - 1, 0),
        {"a1": 0, "a2": HUGE},
    ),
]


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("decode", "budget", "replicas"), [pytest.param(*row[1:], id=row[0]) for row in HUGE_ROWS]
)
def test_a_step_takes_as_long_for_many_replicas_as_for_few(
    decode: RoleState, budget: Budget, replicas: dict[str, int]
) -> None:
    assert step(role(1, "a1", rev("a1", 1)), decode, budget).decode == replicas


FINISHED = [
    ("empty", rev("a1", 0), ("a1",)),
    ("pods are ending", rev("a1", 0, deleting=1), ()),
    ("its controller has not seen it", rev("a1", 0, settled=False), ()),
    ("status tells of pods", rev("a1", 0, reported=1), ()),
    ("a pod is there", rev("a1", 0, pods=1, ready=1), ()),
    ("it is asked for", rev("a1", 1), ()),
]


@pytest.mark.parametrize(("old", "gone"), [pytest.param(*row[1:], id=row[0]) for row in FINISHED])
def test_workloads_end_when_they_are_known_to_be_empty(old: RevisionState, gone: tuple[str, ...]) -> None:
    told = step(role(4, "a2", old, rev("a2", 4)), role(1, "a1", rev("a1", 1)), SURGE)
    assert told.finished == {"prefill": gone, "decode": ()}


def test_the_target_at_zero_keeps_its_workload() -> None:
    assert step(role(0, "a1", rev("a1", 0)), role(0, "a1", rev("a1", 0)), SURGE).finished["prefill"] == ()


ROLLING = [
    ("done", role(1, "a1", rev("a1", 1)), False),
    ("pods start, nothing is replaced", role(2, "a1", rev("a1", 2, 1)), False),
    ("an old one is there", role(1, "a2", rev("a1", 1), rev("a2", 1)), True),
    ("an old one is ending", role(1, "a2", rev("a1", 0, deleting=1), rev("a2", 1)), True),
    ("only an empty workload is left", role(1, "a2", rev("a1", 0), rev("a2", 1)), False),
]


@pytest.mark.parametrize(("one", "rolling"), [pytest.param(*row[1:], id=row[0]) for row in ROLLING])
def test_rolling(one: RoleState, rolling: bool) -> None:
    assert step(one, role(1, "a1", rev("a1", 1)), SURGE).rolling is rolling
