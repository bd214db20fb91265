"""kwok nodes look like nodes with eight H200, and their pods go through the states that a kubelet tells."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cluster.harness.api import Api, Manifest
from tests.cluster.harness.fake_nodes import RDMA, TAINT, FakeNodes

GATE = "plait.dev/router-admitted"


def engine_pod(
    namespace: str, name: str, *, annotations: dict[str, str] | None = None, **more: Any
) -> Manifest:
    """A pod as the operator makes them, in small."""
    container = {
        "name": "engine",
        "image": "engine:1",
        "resources": {"limits": {"nvidia.com/gpu": "8", RDMA: "8"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations or {}},
        "spec": {
            "containers": [container],
            "initContainers": [{"name": "preflight", "image": "engine:1"}],
            "tolerations": [{"key": TAINT["key"], "operator": "Exists"}],
            "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H200"},
            **more,
        },
    }


def conditions(pod: Manifest) -> dict[str, str]:
    return {c["type"]: c["status"] for c in pod.get("status", {}).get("conditions", [])}


def ready(pod: Manifest) -> bool:
    return conditions(pod).get("Ready") == "True"


def set_gate(api: Api, namespace: str, name: str, status: str) -> None:
    patch = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "status": {"conditions": [{"type": GATE, "status": status}]},
    }
    api.apply(patch, manager="gate", subresource="status")


def test_a_pod_of_eight_gpus_fills_a_node(api: Api, kwok: FakeNodes, namespace: str) -> None:
    kwok.add(api, "h200-full")
    pinned = {"kubernetes.io/hostname": "h200-full"}
    api.create(engine_pod(namespace, "first", nodeSelector=pinned))
    pod = api.until("v1", "Pod", "first", namespace, ready, what="first pod ready")
    assert pod["status"]["podIP"].startswith("10.245.")
    api.create(engine_pod(namespace, "second", nodeSelector=pinned))
    pod = api.until(
        "v1",
        "Pod",
        "second",
        namespace,
        lambda p: conditions(p).get("PodScheduled") == "False",
        what="second pod refused by the scheduler",
    )
    assert "Insufficient nvidia.com/gpu" in pod["status"]["conditions"][0]["message"]
    api.delete("v1", "Pod", "first", namespace)
    api.until("v1", "Pod", "second", namespace, ready, what="second pod ready once there is room")
    kwok.remove(api, "h200-full")


def test_the_readiness_gate_is_honoured(api: Api, kwok: FakeNodes, namespace: str) -> None:
    kwok.add(api, "h200-gate")
    selector = {"kubernetes.io/hostname": "h200-gate"}
    api.create(
        engine_pod(namespace, "gated", readinessGates=[{"conditionType": GATE}], nodeSelector=selector)
    )
    pod = api.until(
        "v1",
        "Pod",
        "gated",
        namespace,
        lambda p: conditions(p).get("ContainersReady") == "True",
        what="containers ready",
    )
    assert conditions(pod)["Ready"] == "False"
    assert GATE not in conditions(pod)
    for _ in range(2):
        set_gate(api, namespace, "gated", "True")
        api.until("v1", "Pod", "gated", namespace, ready, what="ready with an open gate")
        set_gate(api, namespace, "gated", "False")
        api.until(
            "v1", "Pod", "gated", namespace, lambda p: not ready(p), what="not ready with a closed gate"
        )
    kwok.remove(api, "h200-gate")


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("image-pull", "ImagePullBackOff"),
        ("crash", "CrashLoopBackOff"),
        ("preflight-failed", "PodInitializing"),
    ],
)
def test_pods_that_do_not_start(
    api: Api, kwok: FakeNodes, namespace: str, behaviour: str, reason: str
) -> None:
    told = {"test.plait.dev/behaviour": behaviour, "test.plait.dev/preflight": '{"ok":false}'}
    api.create(engine_pod(namespace, "pod", annotations=told))
    pod = api.until("v1", "Pod", "pod", namespace, lambda p: "containerStatuses" in p["status"], what="told")
    assert pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == reason
    assert not ready(pod)
    if behaviour == "preflight-failed":
        last = pod["status"]["initContainerStatuses"][0]["lastState"]["terminated"]
        assert (last["exitCode"], last["message"]) == (1, '{"ok":false}')


def test_a_pod_may_become_unready_and_ready_again(api: Api, kwok: FakeNodes, namespace: str) -> None:
    api.create(engine_pod(namespace, "pod"))
    pod = api.until("v1", "Pod", "pod", namespace, ready, what="ready")
    started = pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
    for behaviour, expected in (("unready", False), ("runs", True)):
        patch = {"metadata": {"annotations": {"test.plait.dev/behaviour": behaviour}}}
        api.patch("v1", "Pod", "pod", namespace, patch)
        what = f"ready is {expected}"
        pod = api.until("v1", "Pod", "pod", namespace, lambda p, e=expected: ready(p) is e, what=what)
    assert pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"] == started


def test_a_job_ends_with_its_message(api: Api, kwok: FakeNodes, namespace: str) -> None:
    template = engine_pod(namespace, "x", annotations={"test.plait.dev/message": '{"layers":4}'})
    spec = {**template["spec"], "restartPolicy": "Never"}
    meta = {"annotations": template["metadata"]["annotations"]}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "inspect", "namespace": namespace},
        "spec": {"template": {"metadata": meta, "spec": spec}},
    }
    api.create(job)
    api.until(
        "batch/v1", "Job", "inspect", namespace, lambda j: j["status"].get("succeeded"), what="Job done"
    )
    [pod] = api.list("v1", "Pod", namespace, selector="job-name=inspect")
    assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"] == '{"layers":4}'
