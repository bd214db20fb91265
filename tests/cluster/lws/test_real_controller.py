"""Groups over nodes with LeaderWorkerSet's own controller: see real.py for how it comes to be here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.cluster.faults.stack import FLAGS, Json, spec
from tests.cluster.harness.api import PLAIT, Api
from tests.cluster.harness.fake_nodes import FakeNodes
from tests.cluster.harness.operators import Operators
from tests.cluster.harness.processes import Process
from tests.cluster.harness.waiting import until
from tests.cluster.lws.real import SOURCES, real_lws

from plait_operator.names import INSTANCE, ROLE

__all__ = ["real_lws"]

pytestmark = [
    pytest.mark.skipif(not SOURCES, reason="PLAIT_LWS names no LeaderWorkerSet with a built controller"),
    pytest.mark.usefixtures("real_lws", "crds"),
]

LWS = ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
GROUPS, NODES_PER_GROUP = 2, 2
SPEC = spec(prefill={"replicas": GROUPS, "nodesPerGroup": NODES_PER_GROUP}, decode={"replicas": 1})


class Groups:
    """One deployment, as the test looks at it."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.api, self.namespace = api, namespace

    def create(self) -> None:
        meta = {"name": "demo", "namespace": self.namespace}
        self.api.create({"apiVersion": PLAIT, "kind": "SharedKVDeployment", "metadata": meta, "spec": SPEC})

    def change(self, **spec: Any) -> None:
        self.api.patch(PLAIT, "SharedKVDeployment", "demo", self.namespace, {"spec": spec})

    def condition(self, kind: str) -> Json:
        body = self.api.get(PLAIT, "SharedKVDeployment", "demo", self.namespace) or {}
        told: list[Json] = (body.get("status") or {}).get("conditions") or []
        found = next((c for c in told if c["type"] == kind), {})
        fresh = found.get("observedGeneration") == body["metadata"]["generation"]
        return found if fresh else {}

    def sets(self) -> list[Json]:
        return self.api.list(*LWS, self.namespace)

    def pods(self) -> list[Json]:
        selector = f"{INSTANCE}=demo,{ROLE}=prefill"
        return self.api.list("v1", "Pod", self.namespace, selector=selector)

    def whole(self) -> int:
        """Groups all pods of which are ready."""
        ready: dict[tuple[str, str], int] = {}
        for pod in self.pods():
            labels = pod["metadata"]["labels"]
            told = {c["type"]: c["status"] for c in (pod.get("status") or {}).get("conditions") or []}
            if told.get("ContainersReady") == "True" and not pod["metadata"].get("deletionTimestamp"):
                group = (
                    labels["leaderworkerset.sigs.k8s.io/name"],
                    labels["leaderworkerset.sigs.k8s.io/group-index"],
                )
                ready[group] = ready.get(group, 0) + 1
        return sum(count == NODES_PER_GROUP for count in ready.values())

    def told(self) -> str:
        lines = [
            f"{s['metadata']['name']}: {s['spec']['replicas']} wanted, {s.get('status')}" for s in self.sets()
        ]
        lines += [
            f"{p['metadata']['name']}: {(p.get('status') or {}).get('phase')} on {p['spec'].get('nodeName')}"
            for p in self.pods()
        ]
        body = self.api.get(PLAIT, "SharedKVDeployment", "demo", self.namespace) or {}
        return "\n".join([*lines, str((body.get("status") or {}).get("conditions"))])

    def settle(self, *, each: Callable[[], None] = lambda: None) -> None:
        """Until the one set there is has all its groups, and the status says so."""

        def done() -> bool:
            each()
            return (
                len(self.sets()) == 1
                and len(self.pods()) == GROUPS * NODES_PER_GROUP
                and self.whole() == GROUPS
                and self.condition("PrefillReady").get("status") == "True"
                and self.condition("Progressing").get("status") == "False"
            )

        until(done, "all groups are ready", seconds=180, every=0.1, why_not=self.told)


@pytest.fixture
def groups(api: Api, namespace: str, kwok: FakeNodes, operators: Operators) -> Groups:
    kwok.add(api, *(f"lws-{number}" for number in range(2 * GROUPS * NODES_PER_GROUP)))
    operator: Process = operators.operator(*FLAGS, "--experimental=multi-host-groups")
    operator.start()
    made = Groups(api, namespace)
    made.create()
    made.settle()
    return made


@pytest.mark.timeout(900)
def test_groups_come_roll_heal_and_go(groups: Groups) -> None:
    """One story, for each chapter needs the ones before it."""
    api, namespace = groups.api, groups.namespace

    # Every pod knows its group: the engine's own flags come from what the controller tells it.
    for pod in groups.pods():
        engine = next(c for c in pod["spec"]["containers"] if c["name"] == "engine")
        env = {e["name"]: e.get("value") for e in engine["env"]}
        labels = pod["metadata"]["labels"]
        words = " ".join([*engine.get("command", []), *engine.get("args", [])])
        assert env["LWS_WORKER_INDEX"] is not None or "LWS_WORKER_INDEX" in str(engine["env"])
        assert env["LWS_LEADER_ADDRESS"], pod["metadata"]["name"]
        assert "--nnodes 2" in words
        assert "$(LWS_WORKER_INDEX)" in words
        assert labels["leaderworkerset.sigs.k8s.io/worker-index"] in ("0", "1")
        assert engine["resources"]["limits"]["nvidia.com/gpu"] == "4"
    # A rollout: the new set beside the old one, never fewer whole groups than asked for.
    before = groups.sets()[0]["metadata"]["name"]
    least = GROUPS

    def look() -> None:
        nonlocal least
        least = min(least, groups.whole())

    groups.change(engine={"env": [{"name": "A", "value": "1"}]})
    groups.settle(each=look)
    assert groups.sets()[0]["metadata"]["name"] != before
    assert least == GROUPS

    # A worker is lost: its whole group is made again, and the other stays.
    old = {p["metadata"]["uid"]: p for p in groups.pods()}
    victim = next(
        p for p in old.values() if p["metadata"]["labels"]["leaderworkerset.sigs.k8s.io/worker-index"] == "1"
    )
    group = victim["metadata"]["labels"]["leaderworkerset.sigs.k8s.io/group-index"]
    api.delete("v1", "Pod", victim["metadata"]["name"], namespace)
    until(
        lambda: (
            not {
                uid
                for uid, p in old.items()
                if p["metadata"]["labels"]["leaderworkerset.sigs.k8s.io/group-index"] == group
            }
            & {p["metadata"]["uid"] for p in groups.pods()}
        ),
        "the group is made anew",
        seconds=90,
        why_not=groups.told,
    )
    groups.settle()
    kept = {p["metadata"]["uid"] for p in groups.pods()} & set(old)
    assert len(kept) == NODES_PER_GROUP

    # Scaled down and up: whole groups.
    groups.change(prefill={"replicas": 1})
    until(
        lambda: len(groups.pods()) == NODES_PER_GROUP and groups.whole() == 1,
        "one group is left",
        seconds=90,
        why_not=groups.told,
    )
    groups.change(prefill={"replicas": GROUPS})
    groups.settle()

    # Gone: nothing is left.
    api.delete(PLAIT, "SharedKVDeployment", "demo", namespace)
    until(
        lambda: not groups.sets() and not groups.pods(),
        "nothing is left",
        seconds=120,
        why_not=groups.told,
    )
