"""What follows from the operator's own writes, of which no watch tells it anything new."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.cluster.controller.test_applier import child
from tests.cluster.harness.api import Api

from plait_operator.actions import Apply, Delete, Plan
from plait_operator.api.resource import SharedKVDeployment
from plait_operator.apply.applier import Applier
from plait_operator.apply.client import Client
from plait_operator.apply.meters import Meters
from plait_operator.children.context import Release
from plait_operator.controller.queue import WorkQueue
from plait_operator.controller.reconcile import Reconciler
from plait_operator.controller.store import Key, Store
from plait_operator.observed import Observed, Ref

Json = dict[str, Any]
CHILD = Ref("v1", "ConfigMap", "demo-x")


@pytest.fixture
def queue() -> WorkQueue[Key]:
    return WorkQueue(gather_s=0.0, first_s=0.01)


@pytest.fixture
def look(
    store: Store,
    queue: WorkQueue[Key],
    client: Client,
    applier: Applier,
    meters: Meters,
    deployment: Json,
) -> Callable[..., list[Observed]]:
    """Takes turns for as long as there are any due, `most` of them; what the plans were made of.

    A plan applies the child where it is not there, and deletes it where it is: what it is given to do.
    """
    seen: list[Observed] = []
    wanted: list[Apply | Delete] = []

    def plan(_: SharedKVDeployment, observed: Observed, __: Release) -> Plan:
        seen.append(observed)
        return Plan(tuple(a for a in wanted if isinstance(a, Delete) == (CHILD in observed.children)))

    reconciler = Reconciler(
        store=store,
        queue=queue,
        client=client,
        applier=applier,
        meters=meters,
        release=Release(),
        apis=frozenset,
        known=lambda _: True,
        planner=plan,
    )

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
