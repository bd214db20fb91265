"""The images in real pods: the runtime put in, a preflight's verdict, an engine that serves, its drain."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.harness.api import Api
from tests.cluster.harness.cluster import Cluster
from tests.cluster.images import recipes
from tests.cluster.images.flags import contract_file, launch
from tests.cluster.images.recipes import NAMES

from plait.contract.verdict import read_inspected, read_verdict
from plait_operator.observed import Manifest

RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
PLAIT = {"name": "plait", "mountPath": "/plait"}


@pytest.fixture(scope="module")
def images(node: Cluster) -> Cluster:
    """The node has runtime and engine images."""
    recipes.load(node, NAMES.runtime, NAMES.engine, NAMES.engine_other)
    return node


@pytest.fixture(scope="module")
def model(node: Cluster) -> Path:
    """A model's folder on the node."""
    return recipes.model(node.instance.run / "model")


@pytest.fixture
def pod(images: Cluster, api: Api, namespace: str, model: Path) -> Callable[..., str]:
    """Creates an engine's pod as the operator writes one, in its main lines; its name."""

    def create(role: str, *, image: str = NAMES.engine, layers: int = 3, **switches: str) -> str:
        flags, env = launch(role, model=Path("/model"), host="0.0.0.0", port=30000, bootstrap=8998)
        env |= {"PYTHONPATH": "/plait/site"} | {f"STUB_{k.upper()}": v for k, v in switches.items()}
        contract = json.loads(contract_file(model, role))
        contract["wire"]["layers"] = layers
        name = f"{role}-{time.monotonic_ns() % 10**9}"
        api.create(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": name, "namespace": namespace},
                "data": {"contract.json": json.dumps(contract)},
            }
        )
        common: Manifest = {
            "image": image,
            "imagePullPolicy": "Never",
            "env": [{"name": key, "value": value} for key, value in env.items()],
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            "volumeMounts": [
                PLAIT,
                {"name": "model", "mountPath": "/model", "readOnly": True},
                {"name": "contract", "mountPath": "/contract"},
                {"name": "shm", "mountPath": "/dev/shm"},
            ],
        }
        preflight = ["python3", "-m", "plait.pod.preflight", "--contract", "/contract/contract.json"]
        preflight += ["--gpus", "0", "--shm-bytes", str(32 << 20), "--", *flags]
        drain = ["python3", "-m", "plait.pod.drain", "--leave-s", "0", "--deadline-s", "5"]
        spec: Manifest = {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 30,
            "initContainers": [
                runtime_container(),
                {"name": "preflight", "command": preflight, **common},
            ],
            "containers": [
                {
                    "name": "engine",
                    "command": ["python3", "-m", "plait.engine", *flags],
                    "readinessProbe": {"httpGet": {"path": "/health", "port": 30000}, "periodSeconds": 1},
                    "lifecycle": {"preStop": {"exec": {"command": [*drain, "--log", "/proc/1/fd/1"]}}},
                    **common,
                }
            ],
            "volumes": [
                {"name": "plait", "emptyDir": {}},
                {"name": "model", "hostPath": {"path": str(model)}},
                {"name": "contract", "configMap": {"name": name}},
                {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
            ],
        }
        api.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": namespace},
                "spec": spec,
            }
        )
        return name

    return create


def runtime_container() -> Manifest:
    """As the operator writes it."""
    return {
        "name": "runtime",
        "image": NAMES.runtime,
        "imagePullPolicy": "Never",
        "command": ["/opt/plait/inject", "/plait"],
        "securityContext": RESTRICTED,
        "volumeMounts": [PLAIT],
    }


def told(pod: Manifest, name: str) -> dict[str, Any]:
    """State of a container that has ended, now or before its restart; {} before."""
    for each in [
        *pod["status"].get("initContainerStatuses", []),
        *pod["status"].get("containerStatuses", []),
    ]:
        if each["name"] == name:
            for state in (each["state"], each.get("lastState", {})):
                if "terminated" in state:
                    found: dict[str, Any] = state["terminated"]
                    return found
    return {}


def ready(pod: Manifest) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))


def test_an_engine_comes_up_and_drains(
    pod: Callable[..., str], api: Api, namespace: str, images: Cluster
) -> None:
    names = [pod(role) for role in ("prefill", "decode")]
    for name in names:
        live = api.until("v1", "Pod", name, namespace, ready, what=f"{name} ready", seconds=180)
        verdict = read_verdict(told(live, "preflight")["message"])
        assert verdict.ok, verdict
        assert {c.name for c in verdict.checks} >= {"engine", "plugin", "flags", "contract", "shm", "hooks"}
        assert "plait-tree.json" not in told(live, "runtime").get("message", "")
        status = api.raw("GET", f"/api/v1/namespaces/{namespace}/pods/{name}:30000/proxy/plait/status")
        expected = json.loads(api.get("v1", "ConfigMap", name, namespace)["data"]["contract.json"])
        assert status["wire_hash"] == expected["wire_hash"]
    busy = pod("decode", busy="1")
    api.until("v1", "Pod", busy, namespace, ready, what=f"{busy} ready", seconds=180)
    for name, least, most in ((names[1], 1.5, 25), (busy, 4.5, 28)):
        began = time.monotonic()
        api.delete("v1", "Pod", name, namespace)
        api.until_gone("v1", "Pod", name, namespace, seconds=60)
        assert least <= time.monotonic() - began <= most, name


@pytest.mark.parametrize(
    ("change", "check", "says"),
    [
        ({"image": NAMES.engine_other}, "engine", "not made for it"),
        ({"layers": 4}, "contract", "wire.layers: expected 4, here 3"),
        ({"hooks": "missing"}, "hooks", "hook target is missing"),
    ],
)
def test_a_pod_that_must_not_start_says_why(
    pod: Callable[..., str], api: Api, namespace: str, change: dict[str, Any], check: str, says: str
) -> None:
    name = pod("decode", **change)
    live = api.until(
        "v1", "Pod", name, namespace, lambda p: told(p, "preflight"), what="preflight ended", seconds=180
    )
    assert told(live, "preflight")["exitCode"] == 1
    failed = {each.name: each for each in read_verdict(told(live, "preflight")["message"]).failed}
    assert says in failed[check].reason
    assert not told(live, "engine")


@pytest.mark.parametrize(("source", "code"), [(recipes.HUB_MODEL, 0), ("lab/none", 1)])
def test_a_model_is_inspected(
    images: Cluster, api: Api, namespace: str, model: Path, source: str, code: int
) -> None:
    spec: Manifest = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "initContainers": [runtime_container()],
        "containers": [
            {
                "name": "inspect",
                "image": NAMES.engine,
                "imagePullPolicy": "Never",
                "command": ["python3", "-m", "plait.pod.inspect", "--model", source],
                "env": [{"name": "PYTHONPATH", "value": "/plait/site"}],
                "volumeMounts": [PLAIT, {"name": "model", "mountPath": "/model", "readOnly": True}],
            }
        ],
        "volumes": [
            {"name": "plait", "emptyDir": {}},
            {"name": "model", "hostPath": {"path": str(model)}},
        ],
    }
    api.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "inspect", "namespace": namespace},
            "spec": spec,
        }
    )
    live = api.until(
        "v1", "Pod", "inspect", namespace, lambda p: told(p, "inspect"), what="inspection ended", seconds=180
    )
    assert told(live, "inspect")["exitCode"] == code
    found = read_inspected(told(live, "inspect")["message"])
    assert found.ok is (code == 0)
    assert found.config.get("num_hidden_layers") == (3 if found.ok else None)
