"""What time alone changes has a time of its own: a plan says when, or says the same for ever."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
from tests.unit.operator.plan.world import NOW, World

from plait_operator.actions import Plan, WriteStatus
from plait_operator.plan.clock import after

LATER = (1, 10, 29, 31, 59, 61, 100, 300, 361, 700, 1799, 1801, 4000, 100_000)
"""Seconds."""


def said(plan: Plan) -> list[Any]:
    """The actions without the dates of conditions, which are of the moment of the write."""
    told: list[Any] = []
    for action in plan.actions:
        if isinstance(action, WriteStatus):
            status = copy.deepcopy(action.status)
            for condition in status.get("conditions", ()):
                condition.pop("lastTransitionTime")
            action = action._replace(status=status)
        told.append(action)
    return told


def changes(world: World) -> bool:
    """Whether time changes what there is to do; fails where it does so before the plan wants to be asked."""
    now, plan = world.now, world.plan()
    try:
        for seconds in LATER:
            world.now = after(now, seconds)
            if said(world.plan()) != said(plan):
                assert plan.again_s is not None, f"in {seconds} s it is another plan, and nobody looks"
                assert plan.again_s <= seconds
                return True
    finally:
        world.now = now
    return False


@pytest.mark.parametrize("seed", range(20))
def test_rollouts_know_no_time(seed: int) -> None:
    told = random.Random(seed)
    world = World()
    for turn in range(25):
        assert not changes(world)
        world.step()
        if told.random() < 0.7:
            world.run()
        if turn % 6 == 5:
            world.broken = {"", *told.sample(sorted(world.workloads("decode")), k=told.randint(0, 1))}
            world.change(decode={"replicas": told.randint(0, 4), "image": f"sglang:{told.randint(1, 3)}"})


def test_a_removal_is_looked_at_when_its_steps_are_over() -> None:
    world = World()
    world.settle()
    world.delete()
    assert changes(world), "routers that do not end"
    world.step()
    world.pods = [pod for pod in world.pods if pod.role != "router"]
    assert changes(world), "engines that do not end"


@pytest.mark.parametrize("kind", ["Failed", "Complete"])
def test_a_model_is_read_again_when_it_is_due(kind: str) -> None:
    world = World(model={"family": None})
    for _ in range(3):
        world.step()
        assert not changes(world), "the Job runs for as long as it takes"
    job = next(live for ref, live in world.children.items() if ref.kind == "Job")
    job["status"] = {"conditions": [{"type": kind, "status": "True", "lastTransitionTime": NOW}]}
    assert changes(world)
    world.step()
    assert changes(world), "and the status that tells of it changes nothing of that"
