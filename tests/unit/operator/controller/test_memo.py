"""A look that trusts what earlier looks have found says just what one says that trusts nothing."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
from tests.unit.operator.plan.world import World

from plait_operator.actions import Plan
from plait_operator.api.resource import SharedKVDeployment
from plait_operator.controller.packing import Children, pack, unpack
from plait_operator.controller.store import Key, Store
from plait_operator.observed import Manifest, Observed, Ref
from plait_operator.plan import children as plan_children
from plait_operator.plan.drift import differs
from plait_operator.plan.plan import make_plan

KEY = Key("serving", "glm")


class Watched:
    """A world whose objects come into a store, each state of one with a version of its own."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.store = Store()
        self._version = 0
        self._told: dict[Ref, Manifest] = {}

    def look(self) -> Plan:
        """As the reconciler looks."""
        self._tell()
        snapshot = self.store.view(KEY)
        assert snapshot is not None
        observed = Observed(
            children=snapshot.children,
            pods=tuple(self.world.pods),
            routers=self.world.routers(),
            apis=self.world.apis,
            refusals=self.world.refusals,
            now=self.world.now,
            fits=snapshot.fits,
        )
        plan = make_plan(SharedKVDeployment.of(snapshot.body), observed, self.world.release)
        self.store.keep(KEY, snapshot)
        return plan

    def _tell(self) -> None:
        self._version += 1
        body = copy.deepcopy(self.world.body)
        body["metadata"]["resourceVersion"] = str(self._version)
        self.store.put_deployment(body)
        for ref in self._told.keys() - self.world.children.keys():
            self.store.drop(self._with(self._told.pop(ref)))
        for ref, live in self.world.children.items():
            if self._told.get(ref) != live:
                self._told[ref] = copy.deepcopy(live)
                self._version += 1
                assert self.store.put(self._with(self._told[ref])) == KEY

    def _with(self, live: Manifest) -> Manifest:
        meta = {**live["metadata"], "namespace": KEY.namespace, "resourceVersion": str(self._version)}
        return {**live, "metadata": meta}


def disturb(world: World, told: random.Random) -> None:
    """Whatever may happen to a deployment between two looks."""
    refs = sorted(world.children)
    ref = told.choice(refs)
    live = copy.deepcopy(world.children[ref])
    match told.randrange(9):
        case 0:
            world.change(decode={"replicas": told.randint(0, 4)})
        case 1:
            world.change(router={"replicas": told.randint(0, 3)})
        case 2:
            world.change(prefill={"podTemplate": {"metadata": {"labels": {"a": str(told.randint(0, 3))}}}})
        case 3 if "spec" in live:
            live["spec"] = {**live["spec"], "replicas": told.randint(0, 5), "type": "Other"}
            world.children[ref] = live
        case 4:
            live["metadata"]["labels"] = {"app.kubernetes.io/instance": "glm", "plait.dev/role": "x"}
            world.children[ref] = live
        case 5:
            live["metadata"]["annotations"] = {"plait.dev/applied": "0" * 16}
            world.children[ref] = live
        case 6 if ref.kind != "Deployment":
            del world.children[ref]
        case 7:
            live["metadata"]["deletionTimestamp"] = world.now
            world.children[ref] = live
        case _:
            live["metadata"].pop("deletionTimestamp", None)
            world.children[ref] = live


@pytest.mark.parametrize("seed", range(12))
def test_trust_changes_no_plan(seed: int) -> None:
    told = random.Random(seed)
    watched = Watched(World(apis=frozenset({"ServiceMonitor", "PodMonitor"})))
    world = watched.world
    for turn in range(40):
        plan = watched.look()
        assert plan == world.plan(), f"turn {turn}"
        for action in plan.actions:
            world.carry_out(action)
        world.run()
        if turn > 5 and told.random() < 0.5:
            disturb(world, told)
        if told.random() < 0.1:
            watched.store.doubt(KEY)


def settled() -> Watched:
    watched = Watched(World())
    watched.world.settle()
    return watched


def test_a_second_look_compares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = settled()
    compared: list[Ref] = []

    def counted(wanted: Manifest, live: Any, *, told: str = "") -> str:
        compared.append(Ref.of(wanted))
        return differs(wanted, live, told=told)

    monkeypatch.setattr(plan_children, "differs", counted)
    assert watched.look().actions == ()
    everything = sorted(compared)
    assert everything == sorted(watched.world.children)
    compared.clear()
    assert watched.look().actions == ()
    assert compared == []
    ref = next(ref for ref in everything if ref.kind == "Service")
    live = copy.deepcopy(watched.world.children[ref])
    live["spec"]["ports"] = []
    watched.world.children[ref] = live
    assert [type(action).__name__ for action in watched.look().actions] == ["Apply"]
    assert compared == [ref], "only what has changed"
    watched.look()
    assert compared == [ref, ref], "what does not fit is not remembered"


def test_in_doubt_everything_is_compared_again() -> None:
    watched = settled()
    watched.look()
    watched.store.doubt(KEY)
    snapshot = watched.store.view(KEY)
    assert snapshot is not None
    assert snapshot.fits == {}


def test_what_was_found_of_an_older_state_is_not_kept() -> None:
    watched = settled()
    watched.look()
    snapshot = watched.store.view(KEY)
    assert snapshot is not None
    assert len(snapshot.fits) == len(watched.world.children)
    ref = next(iter(snapshot.fits))
    newer = copy.deepcopy(watched.world.children[ref])
    newer["metadata"] |= {"namespace": "serving", "resourceVersion": "100000"}
    watched.store.put(newer)
    watched.store.keep(KEY, snapshot)
    again = watched.store.view(KEY)
    assert again is not None
    assert ref not in again.fits
    assert again.fits == {other: told for other, told in snapshot.fits.items() if other != ref}


def test_children_are_unpacked_when_they_are_read() -> None:
    one, two = ({"kind": "X", "metadata": {"name": name, "managedFields": [1]}, "n": 1} for name in "ab")
    refs = {name: Ref("v1", "X", name) for name in "ab"}
    held = Children({refs["a"]: pack(one), refs["b"]: b"not packed at all"})
    assert list(held) == [refs["a"], refs["b"]]
    assert refs["b"] in held
    assert held.get(Ref("v1", "Y", "a")) is None
    assert held[refs["a"]] == {"kind": "X", "metadata": {"name": "a"}, "n": 1}
    assert held[refs["a"]] is held[refs["a"]]
    assert unpack(pack(two))["metadata"] == {"name": "b"}
