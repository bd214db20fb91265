"""What a real control plane says when pods cannot be: recognised, and the same at every try."""

from __future__ import annotations

import re
import time
from typing import Any

from tests.cluster.harness.api import Api
from tests.cluster.harness.fake_nodes import FakeNodes

from plait_operator import names
from plait_operator.api.reasons import Reason
from plait_operator.controller.podfact import pod_fact
from plait_operator.observed import Observed, Ref
from plait_operator.status.problems import Problem, problems_of

REVISION = "1111bbbb"
NAME = names.short("glm", "prefill", REVISION)
LABELS = {
    **names.labels("glm", role="prefill"),
    names.REVISION: REVISION,
}


def workload(namespace: str, **pod: Any) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAME, "namespace": namespace, "labels": LABELS},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": names.selector("glm", role="prefill", revision=REVISION)},
            "template": {
                "metadata": {"labels": LABELS},
                "spec": {
                    "containers": [{"name": "engine", "image": "engine:none", **pod}],
                    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
                },
            },
        },
    }


def problems(api: Api, namespace: str) -> list[Problem]:
    """As the status would tell them of what is there now."""
    body = api.get("apps/v1", "Deployment", NAME, namespace)
    assert body is not None
    pods = tuple(pod_fact(pod) for pod in api.list("v1", "Pod", namespace))
    observed = Observed(children={Ref.of(body): body}, pods=pods)
    return problems_of(observed, deployment="glm", role="prefill", revision=REVISION)


def told(api: Api, namespace: str, reason: Reason) -> str:
    """The words of the one problem, once it is `reason`."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (found := problems(api, namespace)) and found[0].reason is reason:
            assert len(found) == 1
            return found[0].message
        time.sleep(0.2)
    raise AssertionError(f"no {reason} but {problems(api, namespace)}")


def test_a_quota(api: Api, namespace: str) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus", "namespace": namespace},
        "spec": {"hard": {"requests.cpu": "1"}},
    }
    api.create(quota)
    api.until(
        "v1",
        "ResourceQuota",
        "gpus",
        namespace,
        lambda body: "used" in body.get("status", {}),
        what="quota counted",
    )
    api.create(workload(namespace, resources={"requests": {"cpu": "4"}}))
    first = told(api, namespace, Reason.PODS_REFUSED)
    assert first == (
        f"Deployment {NAME}: pods is forbidden: exceeded quota: gpus, requested: requests.cpu=4, "
        "limited: requests.cpu=1"
    )
    # What is another pod's name at another try, and what others use, is left out.
    assert "used: requests.cpu=0" in refusal(api, namespace)
    assert re.search(f'pods "{NAME}-', refusal(api, namespace))


def refusal(api: Api, namespace: str) -> str:
    """The controller's own words."""
    body = api.get("apps/v1", "Deployment", NAME, namespace)
    assert body is not None
    return next(c["message"] for c in body["status"]["conditions"] if c["type"] == "ReplicaFailure")


def test_no_room(api: Api, kwok: FakeNodes, namespace: str) -> None:
    api.create(workload(namespace, resources={"limits": {"nvidia.com/gpu": "64"}}))
    first = told(api, namespace, Reason.UNSCHEDULABLE)
    assert "Insufficient nvidia.com/gpu" in first
    assert not any(word.isdigit() for word in first.split())
    # One more node is no news for a pod that does not fit it either.
    before = unschedulable(api, namespace)
    kwok.add(api, "h200-more")
    try:
        deadline = time.monotonic() + 30
        while unschedulable(api, namespace) == before and time.monotonic() < deadline:
            time.sleep(0.2)
        assert unschedulable(api, namespace) != before
        assert told(api, namespace, Reason.UNSCHEDULABLE) == first
    finally:
        kwok.remove(api, "h200-more")


def unschedulable(api: Api, namespace: str) -> str:
    """The scheduler's own words."""
    [pod] = api.list("v1", "Pod", namespace)
    return pod_fact(pod).unschedulable
