"""A deployment that is deleted without its children, and one of the same name after it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cluster.controller.test_namespaces import demo
from tests.cluster.harness.api import PLAIT, Api
from tests.cluster.harness.kubectl import Kubectl
from tests.cluster.harness.processes import Process
from tests.cluster.harness.waiting import until

LABELS = "app.kubernetes.io/instance=demo"


@pytest.mark.parametrize("number", range(3))
def test_what_is_left_behind_serves_on_and_is_taken_over(
    api: Api, crds: list[str], namespace: str, operator_process: Process, kubectl: Kubectl, number: int
) -> None:
    """Several times: the collector may be done before the operator has looked, or long after."""

    def uids(*, of: str) -> dict[str, str]:
        """Of the workloads whose one owner is the deployment `of` (empty: that have none)."""
        found = api.list("apps/v1", "Deployment", namespace, selector=LABELS)
        owners = {d["metadata"]["name"]: d["metadata"].get("ownerReferences") or [] for d in found}
        mine = [name for name, told in owners.items() if [o["uid"] for o in told] == ([of] if of else [])]
        return {d["metadata"]["name"]: d["metadata"]["uid"] for d in found if d["metadata"]["name"] in mine}

    def three(*, of: str) -> Any:
        return uids(of=of) if len(uids(of=of)) == 3 else None

    first = api.create(demo(namespace))["metadata"]["uid"]
    workloads = until(lambda: three(of=first), "prefill, decode and routers", seconds=40)
    kubectl("delete", "skv", "demo", "-n", namespace, "--cascade=orphan", "--wait=false")
    # The garbage collector learns of kinds that were made again every half minute, and orphans after that.
    until(
        lambda: api.get(PLAIT, "SharedKVDeployment", "demo", namespace) is None,
        "it is gone",
        seconds=100,
        why_not=lambda: str((api.get(PLAIT, "SharedKVDeployment", "demo", namespace) or {}).get("metadata")),
    )
    assert uids(of="") == workloads
    second = api.create(demo(namespace))["metadata"]["uid"]
    assert until(lambda: three(of=second), "taken over", seconds=40) == workloads
