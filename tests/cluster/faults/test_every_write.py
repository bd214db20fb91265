"""An operator that dies after each single write, and knows nothing of the one before."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.cluster.faults.stack import Stack, behaves, spec
from tests.cluster.harness.api import PLAIT, Api
from tests.cluster.harness.cluster import Cluster

from plait_operator.actions import Event, Plan
from plait_operator.api.resource import SharedKVDeployment
from plait_operator.apply.applier import Applier
from plait_operator.apply.client import Client
from plait_operator.apply.connection import Connection
from plait_operator.apply.events import Recorder
from plait_operator.apply.fence import NoFence
from plait_operator.apply.kinds import CHILDREN, POD
from plait_operator.apply.limit import Limiter
from plait_operator.apply.meters import Meters
from plait_operator.children.context import Release
from plait_operator.controller.informer import SELECTOR
from plait_operator.controller.store import Key, Store
from plait_operator.controller.watching import whole
from plait_operator.observed import Observed
from plait_operator.plan.plan import make_plan


class Mayfly:
    """One life: look at the cluster anew, plan, write once, die."""

    def __init__(self, cluster: Cluster) -> None:
        self._api: Api = cluster.api
        self._connection = Connection.load(cluster.instance.kubeconfig())
        self.lives = 0

    def live(self, key: Key) -> bool:
        """Whether there was anything to write (or still is somebody to die for)."""
        body = self._api.get(PLAIT, "SharedKVDeployment", key.name, key.namespace)
        if body is None:
            return False
        store = Store()
        store.put_deployment(body)
        for kind in (POD, *CHILDREN):
            if kind.optional:
                continue
            found = self._api.raw("GET", kind.path(key.namespace), labelSelector=SELECTOR)
            for thing in found["items"]:
                store.put(whole(kind, thing))
        view = store.view(key)
        assert view is not None
        client = Client(
            self._connection,
            fence=NoFence(),
            limiter=Limiter(rate=500, burst=500),
            meters=Meters(),
            timeout_s=10,
        )
        try:
            client.read("/version", kind="Version")
            now = client.now().strftime("%Y-%m-%dT%H:%M:%SZ")
            observed = Observed(children=view.children, pods=view.pods, now=now)
            plan = make_plan(SharedKVDeployment.of(view.body), observed, Release())
            writes = [a for a in plan.actions if not isinstance(a, Event)]
            if not writes:
                return False
            outcome = Applier(client, Recorder("mayfly"), store).carry_out(
                Plan((writes[0],)), body=view.body, known=view.children
            )
            assert not outcome.refusals
            self.lives += outcome.writes
            return True
        finally:
            client.close()

    def until(self, key: Key, over: Callable[[], bool], *, seconds: float) -> None:
        """Life after life, until nothing is left to write and `over`."""
        deadline = time.monotonic() + seconds
        while True:
            busy = self.live(key)
            if not busy and over():
                return
            assert time.monotonic() < deadline, "not over"
            if not busy:
                time.sleep(0.05)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_stack_is_made_changed_reverted_and_removed_one_write_at_a_life(
    plane: Cluster, stack: Callable[..., Stack], api: Api, namespace: str
) -> None:
    slow: Any = behaves("slow", delay="300ms")
    mayfly, key = Mayfly(plane), Key(namespace, "demo")
    one = stack(spec(prefill=slow, decode=slow), settled=False)

    def rolled() -> bool:
        body, found = one.body(), one.condition("Progressing")
        fresh = found.get("observedGeneration") == body["metadata"]["generation"]
        return fresh and found.get("status") == "False" and len(one.workloads()) == 2

    mayfly.until(key, rolled, seconds=200)
    made = mayfly.lives
    assert made > 15, "every child, and some statuses"
    one.capacity.arm()
    before = one.revisions()
    one.change(cache={"dtype": "bfloat16"})
    for _ in range(12):
        mayfly.live(key)
    one.change(cache={"dtype": "fp8_e4m3"})
    mayfly.until(key, rolled, seconds=200)
    assert one.revisions() == before
    one.change(cache={"dtype": "bfloat16"})
    mayfly.until(key, rolled, seconds=200)
    assert one.revisions() != before
    one.keeps(prefill=2, decode=3)
    one.delete()
    mayfly.until(key, lambda: api.get(PLAIT, "SharedKVDeployment", "demo", namespace) is None, seconds=200)
    print(f"\n{mayfly.lives} lives, {made} to the first stack")
