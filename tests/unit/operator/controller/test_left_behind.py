"""A deployment that is shown and that nobody may write: its namespace went while the kind was not served.

The client and the applier are stand-ins here: such a thing comes of a moment in which an API server starts.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest
from tests.unit.operator.controller.conftest import Clock
from tests.unit.operator.controller.test_store import KEY, body

from plait_operator.actions import Plan
from plait_operator.apply.applier import Applier, Outcome
from plait_operator.apply.client import Client
from plait_operator.apply.meters import Meters
from plait_operator.children.context import Release
from plait_operator.controller.queue import WorkQueue
from plait_operator.controller.reconcile import Reconciler
from plait_operator.controller.store import Key, Store
from plait_operator.observed import Ref


class Server:
    """A client whose server shows `shown`, and an applier whose writes find nothing, or a refusal."""

    def __init__(self) -> None:
        self.shown: dict[str, Any] | None = body()
        self.outcome = Outcome(missing=True, writes=1)
        self.time = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.time

    def read(self, path: str, *, kind: str) -> dict[str, Any] | None:
        assert (path.split("/")[-3:], kind) == (["ns", "sharedkvdeployments", "demo"], "SharedKVDeployment")
        return self.shown

    def carry_out(self, plan: Plan, **_: Any) -> Outcome:
        return self.outcome


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def queue(clock: Clock) -> WorkQueue[Key]:
    return WorkQueue(gather_s=0.0, first_s=1.0, most_s=120.0, clock=clock, rand=lambda: 1.0)


@pytest.fixture
def store() -> Store:
    made = Store()
    assert made.put_deployment(body()) == KEY
    return made


@pytest.fixture
def reconciler(server: Server, queue: WorkQueue[Key], store: Store) -> Reconciler:
    return Reconciler(
        store=store,
        queue=queue,
        client=cast(Client, server),
        applier=cast(Applier, server),
        meters=Meters(),
        release=Release(),
        apis=frozenset,
        known=lambda _: True,
        planner=lambda *_: Plan(()),
    )


def waits(queue: WorkQueue[Key], clock: Clock, reconciler: Reconciler, looks: int) -> list[float]:
    """Seconds before each of so many looks."""
    found = []
    for _ in range(looks):
        began = clock.now
        while (turn := queue.get(timeout_s=0.0)) is None:
            clock.now += 0.25
            assert clock.now - began < 1000.0, "it is never looked at again"
        found.append(clock.now - began)
        reconciler.turn(turn)
        queue.done(turn.key)
    return found


def test_it_is_looked_at_less_and_less(
    reconciler: Reconciler, queue: WorkQueue[Key], clock: Clock, store: Store
) -> None:
    queue.add(KEY)
    assert waits(queue, clock, reconciler, 10) == [0, 1, 2, 4, 8, 16, 32, 64, 120, 120]
    assert store.view(KEY) is not None


def test_once_it_can_be_written_it_is_one_like_others(
    reconciler: Reconciler, queue: WorkQueue[Key], clock: Clock, server: Server
) -> None:
    queue.add(KEY)
    waits(queue, clock, reconciler, 6)
    server.outcome = Outcome()
    waits(queue, clock, reconciler, 1)
    assert queue.get(timeout_s=0.0) is None
    clock.now += 1000.0
    assert queue.get(timeout_s=0.0) is None
    server.outcome = Outcome(refusals={Ref("v1", "Service", "demo"): "quota"})
    queue.add(KEY)
    assert waits(queue, clock, reconciler, 3) == [0, 1, 2], "its first failure again"


def test_one_that_is_gone_is_forgotten(
    reconciler: Reconciler, queue: WorkQueue[Key], clock: Clock, server: Server, store: Store
) -> None:
    server.shown = None
    queue.add(KEY)
    waits(queue, clock, reconciler, 2)
    assert store.view(KEY) is None
    assert queue.get(timeout_s=0.0) is None
