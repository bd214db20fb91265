"""What follows from the operator's own writes, of which no watch tells it anything new."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.cluster.controller.test_applier import child
from tests.cluster.harness.api import PLAIT, Api

from plait_operator.actions import Apply, Delete, Plan
from plait_operator.api.resource import SharedKVDeployment
from plait_operator.apply.applier import Applier
from plait_operator.apply.client import Client
from plait_operator.apply.meters import Meters
from plait_operator.children.context import Release
from plait_operator.controller.queue import Turn, WorkQueue
from plait_operator.controller.reconcile import PATIENCE_S, Planner, Reconciler
from plait_operator.controller.store import Key, Store
from plait_operator.observed import Observed, Ref

Json = dict[str, Any]
CHILD = Ref("v1", "ConfigMap", "demo-x")


@pytest.fixture
def queue() -> WorkQueue[Key]:
    return WorkQueue(gather_s=0.0, first_s=0.01)


@pytest.fixture
def now() -> list[float]:
    return [0.0]


@pytest.fixture
def reconcile(
    store: Store,
    queue: WorkQueue[Key],
    client: Client,
    applier: Applier,
    meters: Meters,
    now: list[float],
) -> Callable[[Planner], Reconciler]:
    return lambda planner: Reconciler(
        store=store,
        queue=queue,
        client=client,
        applier=applier,
        meters=meters,
        release=Release(),
        apis=frozenset,
        known=lambda _: True,
        planner=planner,
        clock=lambda: now[0],
    )


@pytest.fixture
def look(
    queue: WorkQueue[Key], reconcile: Callable[[Planner], Reconciler], deployment: Json
) -> Callable[..., list[Observed]]:
    """Takes turns for as long as there are any due, `most` of them; what the plans were made of.

    A plan applies the child where it is not there, and deletes it where it is: what it is given to do.
    """
    seen: list[Observed] = []
    wanted: list[Apply | Delete] = []

    def plan(_: SharedKVDeployment, observed: Observed, __: Release) -> Plan:
        seen.append(observed)
        return Plan(tuple(a for a in wanted if isinstance(a, Delete) == (CHILD in observed.children)))

    reconciler = reconcile(plan)

    def look(*actions: Apply | Delete, most: int = 5) -> list[Observed]:
        seen.clear()
        wanted[:] = actions
        queue.add(Key(deployment["metadata"]["namespace"], "demo"))
        while len(seen) < most and (turn := queue.get(timeout_s=0.3)) is not None:
            reconciler.turn(turn)
            queue.done(turn.key)
        return list(seen)

    return look


def test_a_refusal_that_is_over_is_looked_at_once_more(
    api: Api, look: Callable[..., list[Observed]], deployment: Json
) -> None:
    foreign = child(deployment)
    foreign["metadata"] |= {"ownerReferences": [], "labels": {}}
    api.create(foreign)
    [*_, refused] = look(Apply(child(deployment)), most=2)
    assert CHILD in refused.refusals
    api.delete("v1", "ConfigMap", CHILD.name, namespace=deployment["metadata"]["namespace"])
    seen = look(Apply(child(deployment)))
    # The status is made of this: the last look must know that all is well, and there is an end to looks.
    assert seen[-1].refusals == {}
    assert CHILD in seen[-1].children
    assert len(seen) <= 3


def test_what_is_deleted_is_looked_at_once_more(
    look: Callable[..., list[Observed]], deployment: Json
) -> None:
    look(Apply(child(deployment)))
    [told] = look()
    uid = told.children[CHILD]["metadata"]["uid"]
    seen = look(Delete(CHILD, uid))
    assert len(seen) == 2
    assert CHILD not in seen[-1].children


def test_a_definition_that_is_newer_than_the_operator_is_waited_for(
    api: Api,
    store: Store,
    reconcile: Callable[[Planner], Reconciler],
    now: list[float],
    deployment: Json,
) -> None:
    namespace = deployment["metadata"]["namespace"]
    version = str(int(deployment["metadata"]["resourceVersion"]) + 1)
    # As the API server gives it out with the defaults of the next release's definition.
    store.put_deployment(
        {
            **deployment,
            "metadata": {**deployment["metadata"], "resourceVersion": version},
            "spec": {**deployment["spec"], "router": {"fromTheNextRelease": True}},
        }
    )

    def never(*_: object) -> Plan:
        raise AssertionError("planned without being understood")

    def status() -> Any:
        return (api.get(PLAIT, "SharedKVDeployment", "demo", namespace) or {}).get("status")

    reconciler = reconcile(never)
    turn = Turn(Key(namespace, "demo"), 0.0)
    for now[0] in (0.0, PATIENCE_S - 1):
        reconciler.turn(turn)
        assert not status()
    now[0] = PATIENCE_S + 1
    reconciler.turn(turn)
    told = {c["type"]: c for c in status()["conditions"]}
    assert told["Admitted"]["status"] == "False"
    assert "spec.router.fromTheNextRelease" in told["Admitted"]["message"]
