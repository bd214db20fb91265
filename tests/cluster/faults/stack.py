"""A deployment under test: made, changed, waited for."""

from __future__ import annotations

import copy
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.cluster.faults.capacity import ROLES, Capacity
from tests.cluster.harness.api import PLAIT, Api
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.processes import Process
from tests.cluster.harness.waiting import until

from plait_operator.names import INSTANCE, REVISION, ROLE

Json = dict[str, Any]
# A term that a busy machine does not miss.
FLAGS = ("--lease-seconds=10", "--log-level=debug")

# A node to each prefill group, one GPU to a decode pod. No routers, so that nobody has to answer for them:
# pods serve then when their containers are ready.
SPEC: Json = {
    "model": {
        "name": "glm-5",
        "family": "glm-5-fp8",
        "contextLength": 65536,
        "source": {"hostPath": {"path": "/models/glm-5"}},
    },
    "engine": {"image": "sglang:v0.5.17"},
    "prefill": {"replicas": 2, "contextParallel": 8},
    "decode": {"replicas": 3},
    "router": {"replicas": 0},
    "transfer": {"backend": "mooncake_tcp"},
    "rollout": {"maxUnavailable": 0, "maxSurge": 1, "drainSeconds": 1},
}


def spec(**changes: Any) -> Json:
    """SPEC with some sections changed, deeply."""
    told = copy.deepcopy(SPEC)
    merge(told, changes)
    return told


def merge(into: Json, changes: Json) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value


def behaves(how: str, **more: str) -> Json:
    """A role's podTemplate that tells kwok how its pods fare."""
    told = {"test.plait.dev/behaviour": how} | {f"test.plait.dev/{k}": v for k, v in more.items()}
    return {"podTemplate": {"metadata": {"annotations": told}}}


class Stack:
    """One SharedKVDeployment. `capacity` watches it from the start."""

    def __init__(self, cluster: Cluster, namespace: str, name: str = "demo", *, gated: bool = False) -> None:
        self.api: Api = cluster.api
        self.namespace = namespace
        self.name = name
        self.capacity = Capacity(cluster.instance, namespace, name, gated=gated)

    def create(self, wanted: Json) -> None:
        self.api.create(
            {
                "apiVersion": PLAIT,
                "kind": "SharedKVDeployment",
                "metadata": {"name": self.name, "namespace": self.namespace},
                "spec": wanted,
            }
        )
        self.capacity.start()

    def change(self, **changes: Any) -> None:
        """A merge patch of the spec."""
        self.api.patch(PLAIT, "SharedKVDeployment", self.name, self.namespace, {"spec": changes})

    def delete(self) -> None:
        self.api.delete(PLAIT, "SharedKVDeployment", self.name, self.namespace)

    def body(self) -> Json:
        found = self.api.get(PLAIT, "SharedKVDeployment", self.name, self.namespace)
        assert found is not None, f"{self.name} is not there"
        return found

    def condition(self, kind: str) -> Json:
        """One condition; empty while there is none."""
        told = (self.body().get("status") or {}).get("conditions") or []
        return next((c for c in told if c["type"] == kind), {})

    def until_condition(self, kind: str, status: str, *, text: str = "", seconds: float = 60) -> Json:
        """Until a condition of the present generation has this status, and `text` in its words."""

        def look() -> Json | None:
            body, found = self.body(), self.condition(kind)
            fresh = found.get("observedGeneration") == body["metadata"]["generation"]
            told = f"{found.get('reason')} {found.get('message')}"
            return found if fresh and found.get("status") == status and text in told else None

        return until(look, f"{kind} {status} {text}", seconds=seconds, why_not=self.told)

    def told(self) -> str:
        """The conditions and workloads in words, for a failure."""
        conditions = (self.body().get("status") or {}).get("conditions") or []
        lines = [f"{c['type']} {c['status']} {c['reason']}: {c['message']}" for c in conditions]
        lines += [
            f"{w['metadata']['name']}: {w['spec']['replicas']} wanted, {w.get('status')}"
            for w in self.workloads()
        ]
        return "\n".join([*lines, f"serving: {self.capacity.story[-20:]}"])

    def workloads(self) -> list[Json]:
        """Deployments of engines."""
        found = self.api.list(
            "apps/v1", "Deployment", self.namespace, selector=f"{INSTANCE}={self.name},{REVISION}"
        )
        return sorted(found, key=lambda w: str(w["metadata"]["name"]))

    def revisions(self) -> dict[str, list[str]]:
        """Revisions of each role that have a workload."""
        return {
            role: [
                w["metadata"]["labels"][REVISION]
                for w in self.workloads()
                if w["metadata"]["labels"][ROLE] == role
            ]
            for role in ROLES
        }

    def pods(self, role: str = "") -> list[Json]:
        more = f",{ROLE}={role}" if role else ""
        return self.api.list("v1", "Pod", self.namespace, selector=f"{INSTANCE}={self.name}{more}")

    def settle(self, *, seconds: float = 90) -> None:
        """Until the status is of the newest spec and done, one workload a role is left, all pods serve."""
        body = self.body()
        wanted = {role: body["spec"][role]["replicas"] for role in ROLES}

        def done() -> bool:
            body = self.body()
            status = body.get("status") or {}
            if status.get("observedGeneration") != body["metadata"]["generation"]:
                return False
            if self.condition("Progressing").get("status") != "False":
                return False
            there = Counter(p["metadata"]["labels"].get(ROLE) for p in self.pods())
            one_each = all(len(r) <= 1 for r in self.revisions().values())
            serving = wanted if all(wanted.values()) else dict.fromkeys(ROLES, 0)
            counts = {role: there[role] for role in ROLES}
            return one_each and counts == wanted and self.capacity.serving() == serving

        until(done, f"{self.name} settled at {wanted}", seconds=seconds, every=0.2, why_not=self.told)

    def keeps(self, *, prefill: int, decode: int) -> None:
        """No moment since the capacity was armed had fewer serving."""
        least = self.capacity.least
        assert least["prefill"] >= prefill, f"{least}: {self.capacity.story}"
        assert least["decode"] >= decode, f"{least}: {self.capacity.story}"


def crash(operator: Process, api: Api, namespace: str) -> None:
    """SIGKILL and a new process. Its Lease is taken away too, or each time would cost a term of waiting."""
    operator.kill()
    api.delete("coordination.k8s.io/v1", "Lease", "plait-tests", namespace)
    operator.start()


def written(process: Process) -> Counter[tuple[str, str]]:
    """Writes of an operator so far, by kind and verb, without those of its Lease and news."""
    text = urllib.request.urlopen(process.ready_url.replace("/readyz", "/metrics"), timeout=5).read().decode()
    found: Counter[tuple[str, str]] = Counter()
    for line in text.splitlines():
        told = re.match(
            r'plait_operator_writes_total\{kind="(\w+)",result="\w+",verb="(\w+)"\} ([0-9.e+]+)', line
        )
        if told and told[2] not in ("lease", "event"):
            found[told[1], told[2]] += int(float(told[3]))
    return found


def quiet(process: Process, seconds: float) -> Counter[tuple[str, str]]:
    """What was written within `seconds` in which nothing happens."""
    before = written(process)
    time.sleep(seconds)
    return written(process) - before


def until_quiet(process: Process, *, seconds: float = 30) -> None:
    """Until two looks a moment apart show no write between them."""
    until(lambda: not quiet(process, 1.0), f"{process.name} quiet", seconds=seconds)


def follow(
    look: Callable[[], Any], each: Callable[[Any], None], *, until_done: Callable[[], bool], seconds: float
) -> int:
    """Call `each` whenever `look` gives something new, until done; how often."""
    last, times, deadline = look(), 0, time.monotonic() + seconds
    while not until_done():
        assert time.monotonic() < deadline, f"not done within {seconds:g} s"
        now = look()
        if now != last:
            last, times = now, times + 1
            each(now)
        time.sleep(0.02)
    return times
