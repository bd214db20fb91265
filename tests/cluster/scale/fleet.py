"""Many deployments on kwok nodes: made in one burst, then edited at a steady rate."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from tests.cluster.conftest import release_finalizers
from tests.cluster.faults.stack import spec
from tests.cluster.harness.api import PLAIT, Api
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.fake_nodes import node
from tests.cluster.harness.waiting import until
from tests.cluster.scale.outside import TURN, Outside

Json = dict[str, Any]
NAMESPACES: Final = 10
PODS_OF_EACH: Final = 5
"""One prefill group, two decode pods, two routers."""
_PODS_OF_A_NODE: Final = 250
_NUMBERS: Final = itertools.count(1)
SPEC: Final[Json] = spec(prefill={"replicas": 1}, decode={"replicas": 2}, router={"replicas": 2})
# Of ten edits seven change a Service, two the number of routers, and one rolls the decode role.
_EDITS: Final = (
    "service",
    "scale",
    "service",
    "service",
    "roll",
    "service",
    "service",
    "scale",
    *["service"] * 2,
)


class Fleet:
    """Deployments named d0, d1 … over some namespaces. `most`: how many there may be; `count`: there are."""

    def __init__(self, cluster: Cluster, most: int) -> None:
        self.most = most
        self.count = 0
        self.api: Api = cluster.api
        self.name = f"fleet{next(_NUMBERS)}"
        self.namespaces = [f"{self.name}-{n}" for n in range(min(NAMESPACES, most))]
        self.made = 0
        """Edits so far."""
        self._routers = dict.fromkeys(range(most), 2)

    @property
    def pods(self) -> int:
        return self.count * PODS_OF_EACH

    def where(self, number: int) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespaces[number % len(self.namespaces)], f"d{number}"

    def room(self) -> None:
        """Namespaces, and nodes for all pods and some rollouts; GPUs are not what is scarce here."""
        for namespace in self.namespaces:
            self.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        for number, name in enumerate(self._nodes()):
            one = node(name, zone=f"zone-{number % 3}", gpus=8 * _PODS_OF_A_NODE)
            one["status"]["capacity"].update(cpu="20000", memory="200Ti")
            # Routers ask for no GPU, and there are no other nodes for them.
            one["spec"] = {}
            self.api.create(one)

    def _nodes(self) -> list[str]:
        return [f"{self.name}-{n}" for n in range(self.most * PODS_OF_EACH * 5 // 4 // _PODS_OF_A_NODE + 2)]

    def remove(self, *, seconds: float) -> None:
        """All of it, and wait until its pods are gone. No operator may be at work."""
        for namespace in self.namespaces:
            release_finalizers(self.api, namespace)
            self.api.delete("v1", "Namespace", namespace)
        until(
            lambda: not any(self.api.list("v1", "Pod", namespace) for namespace in self.namespaces),
            f"pods of {self.name} gone",
            seconds=seconds,
            every=1.0,
        )
        for name in self._nodes():
            self.api.delete("v1", "Node", name)

    def create(self, more: int) -> None:
        """So many more, by a few threads at once."""
        first, self.count = self.count, self.count + more
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(self._create, range(first, self.count)))

    def _create(self, number: int) -> None:
        namespace, name = self.where(number)
        self.api.create(
            {
                "apiVersion": PLAIT,
                "kind": "SharedKVDeployment",
                "metadata": {"name": name, "namespace": namespace},
                "spec": copy.deepcopy(SPEC),
            }
        )

    def await_available(self, *, seconds: float, told: Callable[[int], None] = lambda n: None) -> None:
        """Until every one is done and all its pods serve. `told`: how many are, at each look."""
        last = [0]

        def all_are() -> bool:
            last[0] = sum(_done(d) for d in self.all())
            told(last[0])
            return last[0] == self.count

        until(
            all_are,
            f"{self.count} deployments available",
            seconds=seconds,
            every=max(1.0, min(10.0, self.count / 50)),
            why_not=lambda: f"{last[0]} are; of the others one: {self._laggard()}",
        )

    def _laggard(self) -> str:
        found = next((d for d in self.all() if not _done(d)), None)
        return str(found and (found["metadata"]["name"], found.get("status", {}).get("conditions")))[:2000]

    def all(self) -> Iterator[Json]:
        for namespace in self.namespaces:
            yield from self.api.list(PLAIT, "SharedKVDeployment", namespace)

    def churn(self, outside: Outside, *, seconds: float, rate: float) -> int:
        """`rate` edits a second, one deployment after the other; how many were made."""
        began, before = time.monotonic(), self.made
        while (now := time.monotonic() - began) < seconds:
            if self.made - before < now * rate:
                self._edit(outside)
            else:
                time.sleep(0.005)
        return self.made - before

    def _edit(self, outside: Outside) -> None:
        number, turn = self.made % self.count, self.made
        # Each deployment gets other kinds of edits from round to round.
        kind = _EDITS[(turn + turn // self.count * 3) % len(_EDITS)]
        namespace, name = self.where(number)
        mark = {TURN: str(turn)}
        if kind == "service":
            change: Json = {"router": {"service": {"annotations": mark}}}
        elif kind == "roll":
            change = {"decode": {"podTemplate": {"metadata": {"annotations": mark}}}}
        else:
            replicas = self._routers[number] = 5 - self._routers[number]
            change = {"router": {"replicas": replicas}}
            mark = {TURN: f"routers {replicas}"}
        outside.expect(kind, namespace, name, mark[TURN])
        self.api.patch(PLAIT, "SharedKVDeployment", name, namespace, {"spec": change})
        self.made += 1


def _done(body: Json) -> bool:
    status = body.get("status") or {}
    told = {c["type"]: c["status"] for c in status.get("conditions") or []}
    return (
        status.get("observedGeneration") == body["metadata"]["generation"]
        and told.get("Progressing") == "False"
        and told.get("Available") == "True"
    )
