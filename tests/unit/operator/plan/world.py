"""A deployment and its surroundings as data, in which plans are carried out: for tests of whole plans.

No API server is imitated: objects are replaced, merged and deleted as the actions say, workloads have as many
pods as they ask for, and pods are ready when `settle` says so.
"""

from __future__ import annotations

import copy
from typing import Any

from plait_operator import names
from plait_operator.actions import (
    Action,
    Apply,
    Delete,
    Event,
    Plan,
    SetFinalizer,
    SetGate,
    WriteStatus,
)
from plait_operator.api.resource import SharedKVDeployment
from plait_operator.children.context import Release
from plait_operator.observed import EngineFact, Manifest, Observed, PodFact, Ref, RouterFact
from plait_operator.plan.clock import after
from plait_operator.plan.plan import make_plan

NOW = "2026-01-01T00:00:00Z"
SPEC: dict[str, Any] = {
    "model": {"name": "m", "source": {"pvc": {"claimName": "models"}}, "family": "deepseek-v3.2"},
    "engine": {"image": "sglang:0.5.17"},
    "cache": {"dtype": "fp8_e4m3"},
    "prefill": {"replicas": 2, "contextParallel": 8},
    "decode": {"replicas": 3},
}


def merged(base: Any, change: Any) -> Any:
    """`change` over `base`, map by map; None takes a key away."""
    if not isinstance(base, dict) or not isinstance(change, dict):
        return copy.deepcopy(change)
    told = dict(base)
    for key, value in change.items():
        if value is None:
            told.pop(key, None)
        else:
            told[key] = merged(base.get(key), value)
    return told


class World:
    """One deployment. `routers`: whether routers answer and take engines in."""

    def __init__(self, *, apis: frozenset[str] = frozenset(), release: Release | None = None, **spec: Any):
        self.body: Manifest = {
            "apiVersion": "plait.dev/v1alpha1",
            "kind": "SharedKVDeployment",
            "metadata": {"name": "glm", "namespace": "serving", "uid": "u-0", "generation": 1},
            "spec": merged(SPEC, spec),
        }
        self.apis = apis
        self.release = release or Release()
        self.children: dict[Ref, Manifest] = {}
        self.strays: set[Ref] = set()
        self.pods: list[PodFact] = []
        self.refusals: dict[Ref, str] = {}
        self.events: list[Event] = []
        self.now = NOW
        self.broken: set[str] = set()
        """Revisions whose pods never get ready."""
        self.uids = 0

    # What the user does.

    def change(self, **spec: Any) -> None:
        self.body["spec"] = merged(self.body["spec"], spec)
        self.body["metadata"]["generation"] += 1

    def delete(self) -> None:
        self.body["metadata"]["deletionTimestamp"] = self.now

    def wait(self, seconds: float) -> None:
        self.now = after(self.now, seconds)

    # Plans.

    @property
    def observed(self) -> Observed:
        return Observed(
            children=self.children,
            strays=frozenset(self.strays),
            pods=tuple(self.pods),
            routers=self.routers(),
            apis=self.apis,
            refusals=self.refusals,
            now=self.now,
        )

    def plan(self) -> Plan:
        return make_plan(SharedKVDeployment.of(copy.deepcopy(self.body)), self.observed, self.release)

    def step(self) -> tuple[Action, ...]:
        """Plan once, and carry it out."""
        actions = self.plan().actions
        for action in actions:
            self.carry_out(action)
        return actions

    def carry_out(self, action: Action) -> None:
        match action:
            case Apply(manifest=manifest, manager=manager):
                self._apply(manifest, whole=manager == names.MANAGER)
            case Delete(ref=ref, uid=uid):
                assert self.children[ref]["metadata"]["uid"] == uid
                self.remove(ref)
            case SetFinalizer(present=present):
                self.body["metadata"]["finalizers"] = [names.FINALIZER] if present else []
            case WriteStatus(status=status, role=""):
                self.body["status"] = status
            case WriteStatus(status=status, role=role):
                self.child("SharedKVRole", f"glm-{role}")["status"] = status
            case SetGate(pod=name, open=is_open):
                self.pods = [
                    pod._replace(admitted=is_open, ready=is_open and pod.containers_ready)
                    if pod.name == name
                    else pod
                    for pod in self.pods
                ]
            case Event():
                self.events.append(action)

    def _apply(self, manifest: Manifest, *, whole: bool) -> None:
        ref = Ref.of(manifest)
        live = self.children.get(ref)
        if live is None:
            self.uids += 1
            server = {"uid": f"u-{self.uids}", "generation": 1}
            live = {"apiVersion": ref.api_version, "kind": ref.kind, "metadata": server}
        else:
            assert manifest["metadata"].get("uid", live["metadata"]["uid"]) == live["metadata"]["uid"]
        told = copy.deepcopy(manifest)
        if whole:
            replicas = (live.get("spec") or {}).get("replicas")
            if ref.kind == "SharedKVRole" and "replicas" not in told["spec"] and replicas is not None:
                told["spec"]["replicas"] = replicas
            status = {"status": live["status"]} if "status" in live else {}
            new = {**told, **status, "metadata": {**live["metadata"], **told["metadata"]}}
        else:
            new = merged(live, told)
        if new.get("spec") != live.get("spec"):
            new["metadata"]["generation"] = live["metadata"]["generation"] + 1
        self.children[ref] = new

    # What the cluster does.

    def child(self, kind: str, name: str) -> Manifest:
        return next(live for ref, live in self.children.items() if (ref.kind, ref.name) == (kind, name))

    def remove(self, ref: Ref) -> None:
        """An object goes, and its pods are on their way out."""
        del self.children[ref]
        self.pods = [pod._replace(deleting=True) if pod.node == ref.name else pod for pod in self.pods]

    def workloads(self, role: str) -> dict[str, Manifest]:
        return {
            live["metadata"]["labels"][names.REVISION]: live
            for ref, live in self.children.items()
            if ref.kind == "Deployment" and live["metadata"]["labels"].get(names.ROLE) == role
            if names.REVISION in live["metadata"]["labels"]
        }

    def replicas(self, role: str) -> dict[str, int]:
        return {revision: load["spec"]["replicas"] for revision, load in self.workloads(role).items()}

    def run(self) -> None:
        """Controllers make and delete pods; what was on its way out is gone; the rest is ready."""
        self.pods = [pod for pod in self.pods if not pod.deleting]
        for ref, live in list(self.children.items()):
            if ref.kind == "Deployment":
                self._control(ref, live)

    def _control(self, ref: Ref, live: Manifest) -> None:
        labels = live["metadata"]["labels"]
        role, revision = labels[names.ROLE], labels.get(names.REVISION, "")
        own = sorted((pod for pod in self.pods if pod.node == ref.name), key=lambda pod: not pod.ready)
        count = live["spec"]["replicas"]
        for pod in own[count:]:
            self.pods[self.pods.index(pod)] = pod._replace(deleting=True, ready=False)
        for index, pod in enumerate(self.pods):
            if pod.node == ref.name and not pod.deleting and revision not in self.broken:
                self.pods[index] = pod._replace(
                    containers_ready=True, ready=role == "router" or pod.admitted is True
                )
        for _ in range(count - len(own)):
            self.uids += 1
            waiting = "ImagePullBackOff: engine: no such image" if revision in self.broken else ""
            pod = PodFact(f"{ref.name}-{self.uids}", f"u-{self.uids}", role, revision, node=ref.name)
            self.pods.append(pod._replace(phase="Running", waiting=waiting))
        alive = [pod for pod in self.pods if pod.node == ref.name and not pod.deleting]
        live["status"] = {  # a new one, so that an earlier look keeps its own
            "observedGeneration": live["metadata"]["generation"],
            "replicas": len(alive),
            "updatedReplicas": len(alive),
        }

    def routers(self) -> tuple[RouterFact, ...]:
        engines = tuple(
            EngineFact(f"{pod.uid}/1", taken_in=True, pairs=True)
            for pod in self.pods
            if pod.containers_ready and pod.role != "router" and not pod.deleting
        )
        return tuple(
            RouterFact(pod.name, ready=True, age_s=1.0, engines=engines)
            for pod in self.pods
            if pod.role == "router" and pod.ready
        )

    def settle(self, turns: int = 200) -> int:
        """Until a plan asks for nothing and nothing changes. Returns the turns; fails when there is none."""
        for turn in range(turns):
            actions = self.step()
            before = self._counts()
            self.run()
            if not actions and before == self._counts():
                return turn
        raise AssertionError(f"no end: {actions}")

    def _counts(self) -> tuple[object, ...]:
        return (list(self.pods), [live.get("status") for live in self.children.values()])

    # What is told.

    def condition(self, kind: str) -> dict[str, Any]:
        return next(one for one in self.body["status"]["conditions"] if one["type"] == kind)

    def said(self, kind: str) -> tuple[str, str]:
        told = self.condition(kind)
        return told["status"], told["reason"]
