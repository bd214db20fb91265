"""A deployment that runs well, and changes to what is seen of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plait.contract.verdict import CheckResult, Verdict
from plait_operator import names
from plait_operator.api.resource import SharedKVDeployment
from plait_operator.api.status import Condition, SharedKVDeploymentStatus
from plait_operator.capacity import contract_of, shape_of
from plait_operator.children.context import Context, Release
from plait_operator.observed import EngineFact, Manifest, Observed, PodFact, Ref, RouterFact
from plait_operator.status import RoleView, View, status_json, status_of

PASSED = Verdict.of([CheckResult(name="gpus", ok=True, value="8")]).message()
FAILED = Verdict.of(
    [
        CheckResult(name="rdma", ok=False, reason="mlx5_9 is not there", fix="one of mlx5_0, mlx5_1"),
        CheckResult(name="gpus", ok=True),
    ]
).message()
NOW = "2026-01-02T03:04:05Z"
BEFORE = "2026-01-01T00:00:00Z"
OLD, NEW = "0000aaaa", "1111bbbb"

READY = RoleView(wanted=2, revision=NEW, pods=2, ready=2, serving=2, updated=2, updated_ready=2)
NONE_READY = READY._replace(ready=0, serving=0, updated_ready=0)
VIEW = View(prefill=READY, decode=READY, router=READY._replace(revision=""))


def deployment(
    *, status: SharedKVDeploymentStatus | None = None, generation: int = 7, name: str = "glm", **spec: Any
) -> SharedKVDeployment:
    """With what was stored as its status."""
    told = {
        "model": {"name": "GLM-5", "family": "glm-5-fp8", "source": {"hostPath": {"path": "/m"}}},
        "engine": {"image": "sglang:0.5.17"},
        **spec,
    }
    return SharedKVDeployment.of(
        {
            "metadata": {"name": name, "namespace": "serving", "uid": "u", "generation": generation},
            "spec": told,
            "status": status_json(status) if status else {},
        }
    )


def context(of: SharedKVDeployment) -> Context:
    """What was found out about it."""
    shape = shape_of(of.spec, None)
    assert shape is not None
    return Context(
        deployment=of,
        release=Release(),
        shape=shape,
        contract=contract_of(of.spec, shape),
        context_length=202752,
    )


def pod(role: str = "prefill", name: str = "p0", **facts: Any) -> PodFact:
    """A ready pod of the newest revision, with changes."""
    base = PodFact(
        name=name,
        uid=f"uid-{name}",
        role=role,
        revision="" if role == "router" else NEW,
        phase="Running",
        ready=True,
        containers_ready=True,
        admitted=None if role == "router" else True,
        preflight="" if role == "router" else PASSED,
    )
    return base._replace(**facts)


def starting(role: str = "prefill", name: str = "p0", **facts: Any) -> PodFact:
    """A pod that is not ready yet."""
    base = {"ready": False, "containers_ready": False, "admitted": None, "preflight": ""}
    return pod(role, name, **{**base, **facts})


PODS = (
    *(pod("prefill", f"p{i}") for i in range(2)),
    *(pod("decode", f"d{i}") for i in range(2)),
    *(pod("router", f"r{i}") for i in range(2)),
)


def observed(*pods: PodFact, now: str = NOW, **facts: Any) -> Observed:
    """What is seen: `pods` instead of the ones of their names."""
    named = {each.name: each for each in (*PODS, *pods)}
    return Observed(pods=tuple(named.values()), now=now, **facts)


def routers(
    *, tokens: int = 0, of: str = "p0", taken_in: bool = True, trouble: str = ""
) -> tuple[RouterFact, ...]:
    """Two routers that say the same about one pod."""
    engine = EngineFact(f"uid-{of}/1", taken_in, pairs=taken_in, trouble=trouble, tokens=tokens)
    return tuple(RouterFact(f"r{i}", True, 1.0, "", (engine,)) for i in range(2))


def workload(role: str, *, revision: str = NEW, failure: str = "") -> dict[Ref, Mapping[str, Any]]:
    """A role's Deployment; `failure`: why it cannot make pods."""
    failed = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": failure}
    body: Manifest = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": names.short("glm", role, revision),
            "labels": {names.ROLE: role, names.REVISION: revision},
        },
        "status": {"conditions": [failed] if failure else []},
    }
    return {Ref.of(body): body}


def told(
    seen: Observed | None = None,
    view: View = VIEW,
    *,
    of: SharedKVDeployment | None = None,
    known: bool = True,
) -> SharedKVDeploymentStatus:
    """The status."""
    of = of or deployment()
    return status_of(of, observed() if seen is None else seen, context(of) if known else None, view)


def conditions(status: SharedKVDeploymentStatus) -> dict[str, Condition]:
    """By type."""
    return {condition.type: condition for condition in status.conditions}
