"""When a rollout says that it is stuck, and with which fix; and that it says nothing while it only waits."""

from __future__ import annotations

import pytest

from plait_operator.plan.roles import Budget, RevisionState, RoleState
from plait_operator.plan.rollout import step

SURGE = Budget(0, 1)


def rev(name: str, replicas: int, ready: int | None = None, **more: object) -> RevisionState:
    told = {"pods": replicas, "reported": replicas, **more}
    return RevisionState(
        revision=name, wire=name[0], replicas=replicas, ready=replicas if ready is None else ready, **told
    )  # type: ignore[arg-type]


def role(wanted: int, target: str, *revisions: RevisionState) -> RoleState:
    return RoleState(wanted=wanted, target=target, wire=target[0], revisions=revisions)


BROKEN = {"failing": 1, "trouble": "ErrImagePull: no such image"}
ROWS = [
    # (name, prefill, decode, budget, words; none: it is not stuck)
    ("done", role(1, "a1", rev("a1", 1)), role(1, "a1", rev("a1", 1)), SURGE, ()),
    ("pods start", role(1, "a1", rev("a1", 1)), role(1, "a2", rev("a1", 1), rev("a2", 1, 0)), SURGE, ()),
    (
        "broken image of one role",
        role(1, "a1", rev("a1", 1)),
        role(1, "a2", rev("a1", 1), rev("a2", 1, 0, **BROKEN)),
        SURGE,
        ("new decode revision a2", "ErrImagePull: no such image", "put the former spec back"),
    ),
    (
        "no room on a node",
        role(1, "a1", rev("a1", 1)),
        role(1, "a2", rev("a1", 1), rev("a2", 1, 0, failing=1, trouble="Unschedulable: Insufficient gpu")),
        SURGE,
        ("Insufficient gpu", "set spec.rollout.maxUnavailable to 1"),
    ),
    (
        "no room on a node, and the budget is used up",
        role(1, "b1", rev("a1", 1), rev("b1", 1, 0, failing=1, trouble="Unschedulable: Insufficient gpu")),
        role(2, "b1", rev("a1", 1), rev("b1", 2)),
        Budget(1, 1),
        ("free a node: with one old pod less",),
    ),
    (
        "a quota lets no pod be made",
        role(1, "a1", rev("a1", 1)),
        role(1, "a2", rev("a1", 1), rev("a2", 1, 0, pods=0, reported=0, trouble="PodsRefused: quota")),
        SURGE,
        ("PodsRefused: quota", "former spec"),
    ),
    (
        "broken image under a new wire",
        role(1, "b1", rev("a1", 1), rev("b1", 1, 0, **BROKEN)),
        role(1, "b1", rev("a1", 1), rev("b1", 1)),
        SURGE,
        ("new prefill revision b1", "ErrImagePull"),
    ),
    (
        "broken, and half of it is done: still in motion",
        role(1, "a1", rev("a1", 1)),
        role(3, "a2", rev("a1", 2), rev("a2", 1)),
        SURGE,
        (),
    ),
    (
        "broken from the start: the role's condition tells",
        role(1, "a1", rev("a1", 1)),
        role(1, "a1", rev("a1", 1, 0, **BROKEN)),
        SURGE,
        (),
    ),
    (
        "new wire, one decode, no surge",
        role(2, "b1", rev("a1", 2)),
        role(1, "b1", rev("a1", 1)),
        Budget(1, 0),
        ("new decode pod", "spec.decode.replicas 1", "Set spec.rollout.maxSurge to 1"),
    ),
    (
        "new wire, one prefill, no surge",
        role(1, "b1", rev("a1", 1)),
        role(2, "b1", rev("a1", 2)),
        Budget(1, 0),
        ("new prefill pod", "Set spec.rollout.maxSurge to 1"),
    ),
    (
        "no budget at all",
        role(1, "a1", rev("a1", 1)),
        role(4, "a2", rev("a1", 4)),
        Budget(0, 0),
        ("new decode pod", "4 are there", "maxUnavailable 0", "Set spec.rollout.maxSurge to 1"),
    ),
    (
        "pods without a workload",
        role(1, "a1", rev("a1", 1)),
        role(1, "a2", rev("a1", 0, 1, pods=1, reported=0, exists=False), rev("a2", 1)),
        SURGE,
        ("decode pods of revision a1 have lost their workload",),
    ),
    (
        "an ending pod holds its place",
        role(1, "a1", rev("a1", 1)),
        role(1, "a2", rev("a1", 1, deleting=1), rev("a2", 0)),
        SURGE,
        (),
    ),
]


@pytest.mark.parametrize(
    ("prefill", "decode", "budget", "words"), [pytest.param(*row[1:], id=row[0]) for row in ROWS]
)
def test_stuck(prefill: RoleState, decode: RoleState, budget: Budget, words: tuple[str, ...]) -> None:
    told = step(prefill, decode, budget).stuck
    assert bool(told) == bool(words), told
    for word in words:
        assert word in told
