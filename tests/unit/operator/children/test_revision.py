"""What moves a role's revision: every field of the spec, one by one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from tests.unit.operator.children.engines import GLM, ROLES, known

from plait_operator import capacity
from plait_operator.api.spec import SharedKVDeploymentSpec
from plait_operator.children.context import Context, Release
from plait_operator.children.pod import pod
from plait_operator.children.revision import contract_map, revision, template
from plait_operator.children.workload import workload

BOTH, PREFILL, DECODE, NONE = {"prefill", "decode"}, {"prefill"}, {"decode"}, set[str]()
HUB = {"repo": "zai-org/GLM-5"}
RDMA = {"resource": "rdma/hca"}
METRIC = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization"}}}

# What must stand beside a field for it to have a meaning.
BASE: dict[str, Any] = {
    "model": GLM,
    "engine": {"image": "sglang:0.5.17"},
    "router": {"replicas": 2},
}


def from_source(**source: Any) -> dict[str, Any]:
    """The base with its model from elsewhere."""
    return {**BASE, "model": {**GLM, "source": source}}


ON_HUB = from_source(hub=HUB)
WITH_TOKEN = from_source(hub={**HUB, "secretRef": {"name": "a"}})

# Path, another value, the roles whose pods change by it, and the spec it is set in (BASE where none stands).
ROWS: list[tuple[Any, ...]] = [
    ("model.name", "other", BOTH),
    ("model.source.pvc.claimName", "other", BOTH),
    ("model.source.pvc.path", "other", BOTH),
    ("model.source.hostPath.path", "/other", BOTH, from_source(hostPath={"path": "/m"})),
    ("model.source.hub.repo", "other/model", BOTH, ON_HUB),
    ("model.source.hub.secretRef.name", "token", BOTH, WITH_TOKEN),
    ("model.source.hub.secretRef.key", "other", BOTH, WITH_TOKEN),
    ("model.revision", "v2", BOTH, ON_HUB),
    ("model.contextLength", 4096, BOTH),
    ("model.family", "deepseek-v3.2", BOTH),
    ("engine.image", "other:1", BOTH),
    ("engine.version", "0.5.18", BOTH),
    ("engine.device", "cpu", BOTH),
    ("engine.args", {"log_level": "debug"}, BOTH),
    ("engine.env", [{"name": "A", "value": "1"}], BOTH),
    ("runtime.image", "other:1", BOTH),
    ("cache.layout", "replicated", PREFILL),
    ("cache.split", "page-zigzag", PREFILL),
    ("cache.pageSize", 128, NONE),  # refused: pages are of 64 tokens, in the engine's flags too
    ("cache.dtype", "bfloat16", BOTH),
    ("cache.prefetch", False, PREFILL),
    ("cache.scratchTokens", 262144, PREFILL),
    ("cache.peerAccess", "required", PREFILL),
    ("cache.hostTier.enabled", True, NONE),  # refused
    ("prefill.replicas", 3, NONE),
    ("prefill.contextParallel", 4, PREFILL),
    ("prefill.nodesPerGroup", 2, PREFILL),
    ("prefill.maxTotalTokens", 65536, PREFILL),
    ("prefill.chunk", 4096, PREFILL),
    ("prefill.image", "other:1", PREFILL),
    ("prefill.args", {"log_level": "debug"}, PREFILL),
    ("prefill.env", [{"name": "A", "value": "1"}], PREFILL),
    ("prefill.resources", {"requests": {"cpu": "1"}}, PREFILL),
    ("prefill.podTemplate", {"metadata": {"annotations": {"a": "b"}}}, PREFILL),
    ("decode.replicas", 3, NONE),
    ("decode.dataParallel", 2, DECODE),
    ("decode.image", "other:1", DECODE),
    ("decode.args", {"log_level": "debug"}, DECODE),
    ("decode.env", [{"name": "A", "value": "1"}], DECODE),
    ("decode.resources", {"requests": {"cpu": "1"}}, DECODE),
    ("decode.podTemplate", {"spec": {"runtimeClassName": "nvidia"}}, DECODE),
    ("transfer.backend", "mooncake_tcp", BOTH),
    ("transfer.rdma.resource", "rdma/other", BOTH, {**BASE, "transfer": {"rdma": RDMA}}),
    ("transfer.rdma.count", 2, BOTH, {**BASE, "transfer": {"rdma": RDMA}}),
    ("transfer.rdma.devices", ["mlx5_1"], BOTH, {**BASE, "transfer": {"rdma": RDMA}}),
    ("router.replicas", 3, NONE),
    ("router.image", "other:1", NONE),
    ("router.processes", 2, NONE),
    ("router.policy", "random", NONE),
    ("router.decodePolicy", "random", NONE),
    ("router.auth.secretRef.name", "keys", NONE),
    ("router.tls.secretRef.name", "tls", NONE),
    ("router.service.type", "NodePort", NONE),
    ("router.service.port", 8080, NONE),
    ("router.service.annotations", {"a": "b"}, NONE),
    ("router.resources", {"requests": {"cpu": "1"}}, NONE),
    ("router.podTemplate", {"metadata": {"annotations": {"a": "b"}}}, NONE),
    ("rollout.maxUnavailable", 1, NONE),
    ("rollout.maxSurge", 2, NONE),
    ("rollout.drainSeconds", 60, BOTH),  # the pods carry it: grace period and preStop
    *(
        (f"autoscaling.{role}.{field}", value, NONE)
        for role in ROLES
        for field, value in {
            "external": True,
            "minReplicas": 2,
            "maxReplicas": 5,
            "metrics": [METRIC],
            "behavior": {"scaleDown": {}},
        }.items()
    ),
    ("pods.imagePullSecrets", [{"name": "a"}], BOTH),
    ("pods.priorityClassName", "high", BOTH),
    ("pods.hostNetwork", True, BOTH),
    ("pods.networkPolicies", False, NONE),
]  # fmt: skip


def with_value(spec: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(json.dumps(spec))
    at = told
    *sections, last = path.split(".")
    for section in sections:
        at = at.setdefault(section, {})
    at[last] = value
    return told


def revisions(spec: dict[str, Any]) -> dict[str, str]:
    ctx = known(**spec)
    return {role: revision(ctx, role) for role in ROLES}


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_field_moves_these_revisions_and_no_others(row: tuple[Any, ...]) -> None:
    path, value, expected = row[:3]
    spec = row[3] if len(row) > 3 else BASE
    before, after = revisions(spec), revisions(with_value(spec, path, value))
    assert {role for role in ROLES if before[role] != after[role]} == expected


def leaves(model: type[BaseModel], path: str = "") -> Iterator[str]:
    """Paths of all fields that hold no section."""
    for name, field in model.model_fields.items():
        here = f"{path}{field.alias or name}"
        inner = [a for a in getattr(field.annotation, "__args__", (field.annotation,)) if isinstance(a, type)]
        sections = [a for a in inner if issubclass(a, BaseModel)]
        if sections and "list" not in str(field.annotation):
            yield from leaves(sections[0], f"{here}.")
        else:
            yield here


def test_the_table_has_every_field_of_the_spec() -> None:
    missing = set(leaves(SharedKVDeploymentSpec)) - {row[0] for row in ROWS}
    # An inline shape and a family are one thing said in two ways: see the test below.
    assert missing == {"model.shape"}


def test_a_shape_moves_a_revision_by_its_contract_alone() -> None:
    family = known(model=GLM)
    assert family.contract is not None
    same = Context(
        deployment=known(model={**GLM, "contextLength": family.context_length}).deployment,
        release=family.release,
        shape=None,
        contract=family.contract,
        context_length=family.context_length,
    )
    assert [revision(same, role) for role in ROLES] == [revision(family, role) for role in ROLES]


def test_the_operators_own_images_count_where_a_deployment_names_none() -> None:
    for release, expected in (
        (Release(runtime_image="other:1"), True),
        (Release(router_image="other:1"), False),
        (Release(namespace="elsewhere"), False),
    ):
        for role in ROLES:
            assert (revision(known(), role) != revision(known(release=release), role)) == expected
    pinned = {"runtime": {"image": "mine:1"}}
    assert revision(known(**pinned), "decode") == revision(
        known(**pinned, release=Release(runtime_image="other:1")), "decode"
    )


def test_another_pull_policy_moves_every_revision_also_of_a_deployment_with_its_own_images() -> None:
    # Told in docs/install.md, so that nobody changes it in passing.
    pinned = {"runtime": {"image": "mine:1"}, "router": {"image": "mine:2"}}
    before, after = known(**pinned), known(**pinned, release=Release(image_pull_policy="Always"))
    for role in ROLES:
        assert revision(before, role) != revision(after, role)


def test_a_deployment_with_its_own_images_stays_as_it_is_under_another_release_of_the_operator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def made(**spec: Any) -> list[Any]:
        ctx = known(**spec)
        return [(contract_map(ctx, role), workload(ctx, role, replicas=1)) for role in ROLES]

    pinned = {"runtime": {"image": "mine:1"}, "router": {"image": "mine:2"}}
    before, own = made(**pinned), made()
    monkeypatch.setattr(capacity, "plait_version", lambda: "99.0.0")
    assert made(**pinned) == before
    # Without: preflight holds the runtime to the version that the operator was made with.
    assert all(one != other for one, other in zip(made(), own, strict=True))


def test_two_deployments_alike_have_pods_of_their_own() -> None:
    one, other = known(name="a"), known(name="b")
    assert (
        contract_map(one, "decode")["metadata"]["name"] != contract_map(other, "decode")["metadata"]["name"]
    )


def turned(value: Any) -> Any:
    """The same JSON with all of its keys in the opposite order."""
    if isinstance(value, dict):
        return {key: turned(each) for key, each in reversed(value.items())}
    return [turned(each) for each in value] if isinstance(value, list) else value


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([row for row in ROWS if len(row) == 3]), max_size=8))
def test_the_order_of_keys_never_counts(rows: list[tuple[Any, ...]]) -> None:
    spec = BASE
    for path, value, _ in rows:
        spec = with_value(spec, path, value)
    assert revisions(turned(spec)) == revisions(spec)


def test_the_same_in_another_process_with_other_hashes() -> None:
    program = (
        "import json, sys; from tests.unit.operator.children.engines import known; "
        "from plait_operator.children.revision import revision; "
        "ctx = known(**json.load(sys.stdin)); print(revision(ctx, 'prefill'), revision(ctx, 'decode'))"
    )
    for seed in ("1", "2"):
        said = subprocess.run(
            [sys.executable, "-c", program],
            input=json.dumps(turned(BASE)),
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        assert said == [revision(known(**BASE), role) for role in ROLES]


@pytest.mark.parametrize("role", ROLES)
def test_the_digits_name_the_template_but_for_the_maps_name(role: str) -> None:
    ctx = known()
    digits = revision(ctx, role)
    assert len(digits) == 8
    assert int(digits, 16) >= 0
    name = f"glm-{role}-{digits}-contract"
    assert contract_map(ctx, role)["metadata"]["name"] == name
    assert template(ctx, role) == pod(ctx, role, contract_map=name)
