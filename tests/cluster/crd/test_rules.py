"""What the API server refuses by itself, with no webhook registered: schema and CEL rules."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.cluster.crd.rows import BAD, GOOD, Bad, manifest
from tests.cluster.harness.api import Api, RefusedError

from plait_operator.api.base import API_VERSION
from plait_operator.api.cel import DEPLOYMENT_RULES

pytestmark = pytest.mark.usefixtures("crds")

NAMES = ["a", "glm-5", "x" * 63, "a0"]
BAD_NAMES = ["x" * 64, "5-glm", "a.b", "a-"]


def refused(api: Api, body: dict[str, Any]) -> set[str]:
    """Fields that a creation is refused for."""
    with pytest.raises(RefusedError) as caught:
        api.create(body, dry_run=True)
    assert caught.value.code == 422, caught.value
    return {str(cause["field"]) for cause in caught.value.causes}


@pytest.mark.parametrize("row", BAD, ids=lambda row: row.field)
def test_refused_with_its_field(api: Api, row: Bad) -> None:
    assert f"spec.{row.field}" in refused(api, manifest(row.change, namespace="default"))


@pytest.mark.parametrize("change", GOOD, ids=lambda change: ",".join(change) or "sound")
def test_taken(api: Api, change: dict[str, Any]) -> None:
    api.create(manifest(change, namespace="default"), dry_run=True)


@pytest.mark.parametrize("name", NAMES)
def test_names_that_pass(api: Api, name: str) -> None:
    api.create(manifest({}, name=name, namespace="default"), dry_run=True)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_do_not(api: Api, name: str) -> None:
    with pytest.raises(RefusedError, match=r"Services and host names|may not be more than 63"):
        api.create(manifest({}, name=name, namespace="default"), dry_run=True)


def test_every_rule_has_a_row() -> None:
    shown = {re.sub(r"\[\d+\]", "[]", f"spec.{row.field}") for row in BAD}
    creating = [rule for rule in DEPLOYMENT_RULES if "oldSelf" not in rule.rule and rule.at]
    assert {f"{rule.at}{rule.field}" for rule in creating} - shown == set()


def test_several_faults_come_in_one_message(api: Api) -> None:
    change = {"cache.pageSize": 32, "prefill.chunk": 1, "rollout": {"maxSurge": 0}, "router.policy": "x"}
    wanted = {"spec.cache.pageSize", "spec.prefill.chunk", "spec.rollout.maxSurge", "spec.router.policy"}
    assert refused(api, manifest(change, namespace="default")) >= wanted


@pytest.mark.parametrize(
    ("change", "field"),
    [({"engine": {"device": "cpu"}}, "device"), ({"cache": {"pageSize": 128}}, "pageSize")],
)
def test_what_cannot_be_changed(api: Api, namespace: str, change: dict[str, Any], field: str) -> None:
    api.create(manifest({}, namespace=namespace))
    with pytest.raises(RefusedError, match=f"{field}: .*cannot be changed"):
        api.patch(API_VERSION, "SharedKVDeployment", "demo", namespace, {"spec": change})


@pytest.mark.parametrize(
    "change",
    [change for change in GOOD if "engine.device" not in change],
    ids=lambda change: ",".join(change) or "sound",
)
def test_all_else_can_be_changed(api: Api, namespace: str, change: dict[str, Any]) -> None:
    before = api.apply(manifest({}, name="changes", namespace=namespace))
    after = api.apply(manifest(change, name="changes", namespace=namespace))
    assert (before["metadata"]["uid"], after["spec"]["engine"]["version"]) == (
        after["metadata"]["uid"],
        before["spec"]["engine"]["version"],
    )
