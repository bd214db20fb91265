"""Engine pods as the scheduler and a GPU node get them: the chart's example for eight H200, on kwok's nodes.

What is expected is written out here, not computed by the operator's own parts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import yaml
from tests.cluster.conftest import release_finalizers
from tests.cluster.golden.conftest import CHART
from tests.cluster.harness.api import PLAIT, Api, Manifest
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.fake_nodes import FakeNodes
from tests.cluster.harness.operators import Operators
from tests.cluster.harness.waiting import until

NAMESPACE = "golden-h200"
VERDICT = json.dumps({"version": 1, "ok": True, "checks": []})

COMMON = [
    *("--model-path", "/model/GLM-5-FP8", "--served-model-name", "GLM-5"),
    *("--host", "0.0.0.0", "--port", "30000", "--context-length", "131072"),
    *("--attention-backend", "dsa", "--page-size", "64", "--kv-cache-dtype", "fp8_e4m3"),
    *("--dsa-prefill-backend", "flashmla_kv", "--dsa-decode-backend", "flashmla_kv"),
    *("--disaggregation-transfer-backend", "mooncake"),
]
PREFILL = [
    *("--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", "8998"),
    *("--tp-size", "8", "--attn-cp-size", "8", "--enable-prefill-cp", "--cp-strategy", "interleave"),
    *("--chunked-prefill-size", "8192", "--disable-overlap-schedule", "--disable-cuda-graph"),
]
DECODE = ["--disaggregation-mode", "decode"]
# Of the stock server, and the same for both: how it starts and logs.
QUIET = ["--skip-server-warmup", "--sleep-on-idle", "--log-level-http", "warning"]
ENV = {
    "PYTHONPATH": "/plait/site",
    "PLAIT_STATE_DIR": "/run/plait",
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}


class Engines(NamedTuple):
    """One pod of each role, and the deployment's status."""

    prefill: Manifest
    decode: Manifest
    status: Manifest
    nodes: dict[str, list[str]]
    """Which nodes each role's pods are on."""


@pytest.fixture(scope="module")
def engines(plane: Cluster, api: Api, kwok: FakeNodes, crds: list[str]) -> Iterator[Engines]:
    """The example is applied, and all of its engine pods run on kwok's nodes."""
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    for volume in volumes():
        api.apply(volume)
    manifest = yaml.safe_load((CHART / "examples/glm-5-8xh200.yaml").read_text())
    manifest["metadata"]["namespace"] = NAMESPACE
    told = {"metadata": {"annotations": {"test.plait.dev/preflight": VERDICT}, "labels": {"team": "search"}}}
    manifest["spec"]["prefill"]["podTemplate"] = {**told, "spec": {"schedulerName": "default-scheduler"}}
    manifest["spec"]["decode"]["podTemplate"] = told
    manifest["spec"]["pods"] = {"imagePullSecrets": [{"name": "pull"}], "priorityClassName": "serving"}
    api.apply(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "serving"},
            "value": 1000,
        }
    )
    operators = Operators(plane, NAMESPACE)
    operators.operator().start()
    api.create(manifest)
    try:
        yield until(lambda: found(api), "engine pods run", seconds=120)
    finally:
        operators.end(tell=False)
        release_finalizers(api, NAMESPACE)
        api.delete("v1", "Namespace", NAMESPACE)
        api.delete("v1", "PersistentVolume", "golden-models")
        api.delete("scheduling.k8s.io/v1", "PriorityClass", "serving")


def volumes() -> list[Manifest]:
    """A volume with the weights, and the claim that the example names."""
    common = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    volume = {"capacity": {"storage": "1Gi"}, "hostPath": {"path": "/models"}, **common}
    claim = {"resources": {"requests": {"storage": "1Gi"}}, "volumeName": "golden-models", **common}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "golden-models"},
            "spec": volume,
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "models", "namespace": NAMESPACE},
            "spec": claim,
        },
    ]


def found(api: Api) -> Engines | None:
    """All three pods run, and the status has seen it."""
    pods = {
        role: api.list("v1", "Pod", NAMESPACE, selector=f"plait.dev/role={role}")
        for role in ("prefill", "decode")
    }
    counts = {role: sum(p["status"]["phase"] == "Running" for p in found) for role, found in pods.items()}
    resource = api.get(PLAIT, "SharedKVDeployment", "glm-5", NAMESPACE)
    if counts != {"prefill": 1, "decode": 2} or resource is None or "status" not in resource:
        return None
    conditions = {c["type"]: c["status"] for c in resource["status"]["conditions"]}
    if conditions["TransferReady"] != "True":
        return None
    nodes = {role: [pod["spec"]["nodeName"] for pod in found] for role, found in pods.items()}
    return Engines(pods["prefill"][0], pods["decode"][0], resource["status"], nodes)


def engine(pod: Manifest) -> Manifest:
    [container] = [c for c in pod["spec"]["containers"] if c["name"] == "engine"]
    return dict(container)


def pairs(flags: list[str]) -> set[tuple[str, ...]]:
    """Flags with their values, whatever their order."""
    grouped: list[list[str]] = []
    for word in flags:
        if word.startswith("--"):
            grouped.append([word])
        else:
            grouped[-1].append(word)
    return {tuple(group) for group in grouped}


def plain_env(container: Manifest) -> dict[str, str]:
    return {e["name"]: e["value"] for e in container["env"] if "value" in e}


@pytest.mark.parametrize(("role", "own"), [("prefill", PREFILL), ("decode", DECODE)])
def test_commands(engines: Engines, role: str, own: list[str]) -> None:
    pod = getattr(engines, role)
    command = engine(pod)["command"]
    assert command[:3] == ["python3", "-m", "plait.engine"]
    assert pairs(command[3:]) == pairs([*COMMON, *own, *QUIET])
    # The preflight looks at the very flags that the engine gets.
    [preflight] = [c for c in pod["spec"]["initContainers"] if c["name"] == "preflight"]
    words = preflight["command"]
    assert words[:3] == ["python3", "-m", "plait.pod.preflight"]
    assert words[words.index("--") + 1 :] == command[3:]
    assert words[words.index("--gpus") + 1] == {"prefill": "8", "decode": "1"}[role]


def test_environment(engines: Engines) -> None:
    for pod, layout in ((engines.prefill, "shared"), (engines.decode, "plain")):
        container = engine(pod)
        expected = {**ENV, "PLAIT_LAYOUT": layout} | (
            {"PLAIT_SPLIT": "page-interleave", "PLAIT_PEER_ACCESS": "required"} if layout == "shared" else {}
        )
        assert plain_env(container) == expected
        [address] = [e for e in container["env"] if e["name"] == "SGLANG_HOST_IP"]
        assert address["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"


def test_the_runtime_is_put_in_before_the_engine(engines: Engines) -> None:
    for pod in (engines.prefill, engines.decode):
        runtime, preflight = pod["spec"]["initContainers"]
        assert (runtime["name"], preflight["name"]) == ("runtime", "preflight")
        assert runtime["image"] == "plait-runtime:0.1.0"
        # The engine's image is the stock one; Plait comes into it by a volume that the engine may only read.
        assert preflight["image"] == engine(pod)["image"] == "lmsysorg/sglang:v0.5.17"
        mounts = {m["mountPath"]: m for m in engine(pod)["volumeMounts"]}
        assert mounts["/plait"]["readOnly"] is True
        assert {"name": "plait", "mountPath": "/plait"} in runtime["volumeMounts"]


def test_volumes(engines: Engines) -> None:
    volumes = {v["name"]: v for v in engines.prefill["spec"]["volumes"]}
    mounts = {m["mountPath"]: m["name"] for m in engine(engines.prefill)["volumeMounts"]}
    assert volumes[mounts["/model"]]["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}
    assert volumes[mounts["/dev/shm"]]["emptyDir"] == {"medium": "Memory", "sizeLimit": "32Gi"}
    contract = volumes[mounts["/etc/plait"]]["configMap"]["name"]
    assert contract.startswith("glm-5-prefill-")


@pytest.mark.parametrize(
    ("role", "gpus", "cpu", "memory"), [("prefill", "8", "32", "256Gi"), ("decode", "1", "8", "64Gi")]
)
def test_resources(engines: Engines, role: str, gpus: str, cpu: str, memory: str) -> None:
    told = engine(getattr(engines, role))["resources"]
    for side in ("limits", "requests"):
        assert told[side]["nvidia.com/gpu"] == gpus
        assert told[side]["rdma/hca"] == "1"
    assert (told["requests"]["cpu"], told["requests"]["memory"]) == (cpu, memory)


def test_labels_say_what_pairs_with_what(engines: Engines) -> None:
    for role, pod in (("prefill", engines.prefill), ("decode", engines.decode)):
        labels: dict[str, Any] = pod["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "glm-5"
        assert labels["app.kubernetes.io/managed-by"] == "plait-operator"
        assert labels["plait.dev/role"] == role
        assert labels["plait.dev/revision"] == engines.status[role]["revision"]
        assert labels["plait.dev/wire-hash"] == engines.status["contract"]["wire"][:16]
        assert labels["team"] == "search"
    assert (
        engines.prefill["metadata"]["labels"]["plait.dev/group-hash"]
        == engines.status["contract"]["group"][:16]
    )


def test_a_group_has_a_node_of_its_own(engines: Engines, kwok: FakeNodes) -> None:
    [group] = engines.nodes["prefill"]
    assert group not in engines.nodes["decode"]
    for pod in (engines.prefill, engines.decode):
        assert pod["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H200"}
        keys = [t["key"] for t in pod["spec"]["tolerations"]]
        assert "nvidia.com/gpu" in keys


def test_probes_and_the_end(engines: Engines) -> None:
    container = engine(engines.prefill)
    startup = container["startupProbe"]
    # Weights of a large model take their time: an hour.
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 3600
    drain = container["lifecycle"]["preStop"]["exec"]["command"]
    assert drain[:3] == ["python3", "-m", "plait.pod.drain"]
    deadline = int(drain[drain.index("--deadline-s") + 1])
    assert deadline == 300
    assert engines.prefill["spec"]["terminationGracePeriodSeconds"] > deadline


def test_rights(engines: Engines) -> None:
    """What the transfer needs, and no more; no token, what the deployment asks of its pods."""
    spec = engines.prefill["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert engine(engines.prefill)["securityContext"]["capabilities"] == {
        "add": ["IPC_LOCK"],
        "drop": ["ALL"],
    }
    assert "hostNetwork" not in spec
    assert spec["imagePullSecrets"] == [{"name": "pull"}]
    assert spec["priorityClassName"] == "serving"


def test_the_gate_stays_closed_while_no_router_has_them(engines: Engines) -> None:
    """There is no node for the routers here, and the status says so."""
    for pod in (engines.prefill, engines.decode):
        assert pod["spec"]["readinessGates"] == [{"conditionType": "plait.dev/router-admitted"}]
        ready = {c["type"]: c["status"] for c in pod["status"]["conditions"]}
        assert (ready["ContainersReady"], ready["Ready"]) == ("True", "False")
    conditions = {c["type"]: c for c in engines.status["conditions"]}
    assert conditions["Available"]["status"] == "False"
    assert conditions["PrefillReady"]["reason"] == "WaitingForRouters"
