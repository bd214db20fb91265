"""Routers first, then engines, then the finalizer; and never for ever."""

from __future__ import annotations

import pytest
from tests.unit.operator.plan.world import World

from plait_operator import names
from plait_operator.actions import Apply, Delete, SetFinalizer, WriteStatus
from plait_operator.plan.removal import MARGIN_S


def removing(**spec: object) -> World:
    world = World(**spec)
    world.settle()
    world.delete()
    return world


def deleted(actions: object) -> set[str]:
    return {one.ref.name for one in actions if isinstance(one, Delete)}  # type: ignore[attr-defined]


def test_routers_go_first() -> None:
    world = removing()
    assert deleted(world.step()) == {"glm-router"}
    assert world.said("Available") == ("False", "Removing")
    # Their requests still run on the engines.
    assert deleted(world.step()) == set()
    assert world.plan().again_s == 120 + MARGIN_S


def test_engines_when_the_routers_have_ended_and_then_the_finalizer() -> None:
    world = removing()
    world.step()
    world.run()
    assert len(deleted(world.step())) == 2
    assert not any(isinstance(one, SetFinalizer) for one in world.plan().actions)
    world.run()
    assert world.plan().actions == (SetFinalizer(present=False),)
    world.step()
    assert world.plan() == ((), None)


def test_what_is_to_be_left_behind_is_left_behind() -> None:
    world = removing()
    world.body["metadata"]["finalizers"] = ["orphan", names.FINALIZER]
    assert world.plan() == ((SetFinalizer(present=False),), None)


def test_what_the_collector_has_already_left_behind_is_not_drained() -> None:
    """It may be done, its finalizer gone, before the operator looks at all."""
    world = removing()
    for ref in list(world.children):
        world.children.pop(ref)
        world.strays.add(ref)
    assert world.plan() == ((SetFinalizer(present=False),), None)


def test_one_child_without_an_owner_is_no_sign() -> None:
    world = removing()
    for ref in [ref for ref in world.children if ref.kind != "Deployment"]:
        world.children.pop(ref)
        world.strays.add(ref)
    assert deleted(world.step()) == {"glm-router"}
    world = removing()
    ref = next(ref for ref in world.children if "decode" in ref.name and ref.kind == "Deployment")
    world.children.pop(ref)
    world.strays.add(ref)
    assert deleted(world.step()) == {"glm-router"}


def test_what_is_deleted_is_deleted_as_it_was_seen() -> None:
    """The collector may be taking owners off just now."""
    world = removing()
    for ref, live in world.children.items():
        live["metadata"]["resourceVersion"] = f"version of {ref.name}"
    seen = []
    for _ in range(3):
        seen += [one for one in world.step() if isinstance(one, Delete)]
        world.run()
    assert len(seen) == 3
    assert all(one.version == f"version of {one.ref.name}" for one in seen)


def test_nothing_is_made_or_mended_any_more() -> None:
    world = removing()
    for ref in [ref for ref in world.children if ref.kind == "Service"]:
        world.remove(ref)
    for _ in range(5):
        assert not any(isinstance(one, Apply) for one in world.step())
        world.run()


@pytest.mark.parametrize(
    ("after", "goes"),
    [(0, set()), (120, set()), (120 + MARGIN_S - 1, set()), (120 + MARGIN_S, {"prefill", "decode"})],
)
def test_routers_that_do_not_end_are_not_waited_for_for_ever(after: float, goes: set[str]) -> None:
    world = removing()
    world.step()
    world.wait(after)
    assert {name.split("-")[1] for name in deleted(world.step())} == goes


@pytest.mark.parametrize(("after", "over"), [(200, False), (2 * (120 + MARGIN_S), True)])
def test_engines_that_do_not_end_are_not_waited_for_for_ever(after: float, over: bool) -> None:
    world = removing()
    world.step()
    world.run()
    world.step()
    world.wait(after)
    assert any(isinstance(one, SetFinalizer) for one in world.plan().actions) is over


def test_less_time_to_drain_is_heeded_while_it_goes() -> None:
    world = removing()
    world.step()
    world.wait(MARGIN_S + 1)
    assert deleted(world.plan().actions) == set()
    world.change(rollout={"drainSeconds": 0})
    assert len(deleted(world.plan().actions)) == 2


def test_one_that_was_never_ours_is_left_alone() -> None:
    world = World()
    world.delete()
    assert world.plan() == ((), None)


def test_one_with_nothing_there_goes_at_once() -> None:
    world = World()
    world.body["metadata"]["finalizers"] = [names.FINALIZER]
    world.delete()
    assert world.plan().actions == (SetFinalizer(present=False),)


@pytest.mark.parametrize("turns", range(12))
def test_in_the_middle_of_a_rollout(turns: int) -> None:
    world = World()
    world.settle()
    world.change(cache={"dtype": "bfloat16"}, model={"contextLength": 32768})
    for _ in range(turns):
        world.step()
        world.run()
    world.delete()
    world.settle()
    assert world.body["metadata"]["finalizers"] == []
    assert not [ref for ref in world.children if ref.kind == "Deployment"]


def test_a_refused_spec_can_go() -> None:
    world = removing()
    world.change(prefill={"contextParallel": 7})
    world.settle()
    assert world.body["metadata"]["finalizers"] == []


def test_the_status_is_written_when_it_changes() -> None:
    world = removing()
    told = [sum(isinstance(one, WriteStatus) for one in world.step()) for _ in range(5)]
    assert told[0] == 1  # It goes; in the next look its routers do.
    assert told[2:] == [0, 0, 0]
