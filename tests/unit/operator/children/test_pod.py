"""The pods of engines, read as a whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.operator.children.engines import GLM, ROLES, container, env, known, pod, value
from tests.unit.operator.children.given import context

from plait.contract.contract_file import ContractFile
from plait.pod.preflight import read
from plait_operator import names
from plait_operator.children.context import Release
from plait_operator.children.pod import pod as pod_of
from plait_operator.children.revision import contract_map, template

RDMA = {"rdma": {"resource": "rdma/hca", "count": 2, "devices": ["mlx5_0", "mlx5_1"]}}
CPU = {
    "engine": {"image": "sglang", "device": "cpu"},
    "transfer": {"backend": "mooncake_tcp"},
    "prefill": {"contextParallel": 2},
}


def mounts(of: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    return {m["mountPath"]: (m["name"], m.get("readOnly", False)) for m in of["volumeMounts"]}


def volumes(of: dict[str, Any]) -> dict[str, Any]:
    return {v["name"]: {key: told for key, told in v.items() if key != "name"} for v in of["volumes"]}


def test_glm_5_on_eight_h200_with_rdma() -> None:
    """The prefill pod of the example deployment, read from top to bottom."""
    of = pod(
        "prefill",
        transfer=RDMA,
        prefill={"resources": {"requests": {"cpu": "32", "memory": "512Gi"}}},
        rollout={"drainSeconds": 300},
    )
    assert [c["name"] for c in of["initContainers"]] == ["runtime", "preflight"]
    assert [c["name"] for c in of["containers"]] == ["engine"]
    engine = container(of)
    assert engine["image"] == "sglang:0.5.17"
    assert engine["command"][:3] == ["python3", "-m", "plait.engine"]
    assert engine["resources"] == {
        "requests": {"cpu": "32", "memory": "512Gi"},
        "limits": {"nvidia.com/gpu": "8", "rdma/hca": "2"},
    }
    assert {port["name"]: port["containerPort"] for port in engine["ports"]} == {
        "http": 30000,
        "bootstrap": 8998,
    }
    assert engine["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]},
    }
    assert env(engine)["PYTHONPATH"] == "/plait/site"
    assert mounts(engine) == {
        "/plait": ("plait", True),
        "/etc/plait": ("contract", True),
        "/tmp": ("tmp", False),
        "/run/plait": ("state", False),
        "/dev/shm": ("shm", False),
        "/model": ("model", True),
    }
    told = volumes(of)
    assert told["model"] == {"persistentVolumeClaim": {"claimName": "models", "readOnly": True}}
    assert told["shm"] == {"emptyDir": {"medium": "Memory", "sizeLimit": "32Gi"}}
    assert of["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H200"}
    assert of["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert of["readinessGates"] == [{"conditionType": "plait.dev/router-admitted"}]
    assert of["terminationGracePeriodSeconds"] == 335
    assert "hostNetwork" not in of


def test_decode_has_one_gpu_and_no_bootstrap_server() -> None:
    engine = container(pod("decode", transfer=RDMA))
    assert engine["resources"]["limits"] == {"nvidia.com/gpu": "1", "rdma/hca": "2"}
    assert [port["name"] for port in engine["ports"]] == ["http"]


@pytest.mark.parametrize("role", ROLES)
def test_deepseek_from_a_hub(role: str) -> None:
    model = {
        "name": "DeepSeek-V3.2",
        "family": "deepseek-v3.2",
        "source": {"hub": {"repo": "deepseek-ai/DeepSeek-V3.2"}},
    }
    of = pod(role, model=model, transfer={"backend": "mooncake_tcp"})
    engine = container(of)
    assert value(engine["command"], "--model-path") == "deepseek-ai/DeepSeek-V3.2"
    assert volumes(of)["model"] == {"emptyDir": {}}
    assert mounts(engine)["/hub"] == ("model", False)
    assert "/model" not in mounts(engine)
    assert engine["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("role", ROLES)
def test_a_laptop_asks_for_no_gpu_and_no_node(role: str) -> None:
    model = {**GLM, "source": {"hostPath": {"path": "/models/tiny"}}}
    of = pod(role, **CPU, model=model)
    assert container(of)["resources"] == {}
    assert "nodeSelector" not in of
    assert "tolerations" not in of
    assert value(container(of, "preflight")["command"], "--gpus") == "0"
    assert volumes(of)["model"] == {"hostPath": {"path": "/models/tiny", "type": "Directory"}}
    assert volumes(of)["shm"]["emptyDir"]["sizeLimit"] == "1Gi"


@pytest.mark.parametrize("role", ROLES)
def test_the_preflight_sees_what_the_engine_will_see(role: str) -> None:
    of = pod(role, transfer=RDMA)
    engine, preflight = container(of), container(of, "preflight")
    for same in ("image", "env", "resources", "securityContext", "volumeMounts"):
        assert preflight[same] == engine[same]
    words = preflight["command"]
    at = words.index("--")
    assert words[:3] == ["python3", "-m", "plait.pod.preflight"]
    assert words[at + 1 :] == engine["command"][3:]
    own = words[:at]
    assert value(own, "--contract") == "/etc/plait/contract.json"
    assert value(own, "--gpus") == engine["resources"]["limits"]["nvidia.com/gpu"]
    assert value(own, "--peer-access") == ("auto" if role == "prefill" else "off")
    assert [own[i + 1] for i, word in enumerate(own) if word == "--rdma-device"] == ["mlx5_0", "mlx5_1"]


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("spec", [{"transfer": RDMA}, CPU], ids=["H200", "CPU"])
def test_the_preflight_understands_its_command(role: str, spec: dict[str, Any]) -> None:
    of = pod(role, **spec)
    words = container(of, "preflight")["command"][3:]
    told, asked = read(words, {})
    assert list(asked.flags) == container(of)["command"][3:]
    assert str(told.contract) == "/etc/plait/contract.json"
    assert asked.args["disaggregation_mode"] == role
    assert (asked.cpu, asked.rdma) == ("engine" in spec, "engine" not in spec)
    assert asked.shm_bytes > 0


def test_the_preflight_is_told_how_much_peer_access_is_needed() -> None:
    for told in ("required", "off"):
        of = pod("prefill", cache={"peerAccess": told})
        assert value(container(of, "preflight")["command"], "--peer-access") == told


@pytest.mark.parametrize("told", ["required", "off"])
def test_the_engine_is_told_how_much_peer_access_is_needed(told: str) -> None:
    for name in ("engine", "preflight"):
        assert env(container(pod("prefill", cache={"peerAccess": told}), name))["PLAIT_PEER_ACCESS"] == told
        assert "PLAIT_PEER_ACCESS" not in env(container(pod("decode", cache={"peerAccess": told}), name))
        # The default is not written: pods that nothing changes for are not replaced.
        assert "PLAIT_PEER_ACCESS" not in env(container(pod("prefill"), name))


def test_the_runtime_is_put_in_by_its_own_image_without_rights() -> None:
    release = Release(runtime_image="r:1", image_pull_policy="Always")
    for image, expected in ((None, "r:1"), ("mine:2", "mine:2")):
        of = template(known(release=release, runtime={"image": image}), "decode")["spec"]
        runtime = container(of, "runtime")
        assert (runtime["image"], runtime["imagePullPolicy"]) == (expected, "Always")
        assert runtime["command"] == ["/opt/plait/inject", "/plait"]
        assert mounts(runtime) == {"/plait": ("plait", False)}
        assert runtime["securityContext"]["runAsNonRoot"] is True
        assert runtime["securityContext"]["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize("role", ROLES)
def test_a_pod_gets_no_token_and_no_variables_of_services(role: str) -> None:
    of = pod(role)
    assert of["automountServiceAccountToken"] is False
    assert of["enableServiceLinks"] is False


@pytest.mark.parametrize("seconds", [0, 120, 3600])
def test_the_grace_is_longer_than_the_drain(seconds: int) -> None:
    of = pod("decode", rollout={"drainSeconds": seconds})
    command = container(of)["lifecycle"]["preStop"]["exec"]["command"]
    drain = int(value(command, "--leave-s")) + int(value(command, "--deadline-s"))
    assert int(value(command, "--deadline-s")) == seconds
    # A look at the engine may take 5 s, and then the engine itself has to end.
    assert of["terminationGracePeriodSeconds"] >= drain + 20


def test_an_engine_may_take_an_hour_to_start() -> None:
    engine = container(pod("prefill"))
    startup, liveness = engine["startupProbe"], engine["livenessProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 3600
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 60
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert engine[probe]["httpGet"] == {"path": "/health", "port": "http", "scheme": "HTTP"}
    assert env(engine)["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] == "false"


@pytest.mark.parametrize("role", ROLES)
def test_a_roles_own_image_is_that_roles_alone(role: str) -> None:
    of = pod(role, prefill={"image": "special:1"})
    expected = "special:1" if role == "prefill" else "sglang:0.5.17"
    assert container(of)["image"] == container(of, "preflight")["image"] == expected


def test_huge_pages_are_mounted_where_they_are_asked_for() -> None:
    limits = {"hugepages-2Mi": "1Gi", "hugepages-1Gi": "4Gi", "memory": "8Gi", "cpu": "4"}
    of = pod("prefill", prefill={"resources": {"limits": limits}})
    told = volumes(of)
    assert told["hugepages-2mi"] == {"emptyDir": {"medium": "HugePages-2Mi"}}
    assert told["hugepages-1gi"] == {"emptyDir": {"medium": "HugePages-1Gi"}}
    assert mounts(container(of))["/dev/hugepages-2Mi"] == ("hugepages-2mi", False)
    assert not [name for name in volumes(pod("decode")) if name.startswith("hugepages")]


def test_host_network_is_only_there_when_asked_for() -> None:
    of = pod("decode", pods={"hostNetwork": True})
    assert (of["hostNetwork"], of["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert "dnsPolicy" not in pod("decode")


def test_secrets_for_images_and_the_priority_reach_the_pod() -> None:
    of = pod("decode", pods={"imagePullSecrets": [{"name": "reg"}], "priorityClassName": "high"})
    assert of["imagePullSecrets"] == [{"name": "reg"}]
    assert of["priorityClassName"] == "high"


@pytest.mark.parametrize("role", ROLES)
def test_labels_name_deployment_role_and_contract(role: str) -> None:
    ctx = known()
    assert ctx.contract is not None
    labels = template(ctx, role)["metadata"]["labels"]
    assert labels[names.INSTANCE] == "glm"
    assert labels[names.ROLE] == role
    assert labels[names.WIRE_HASH] == ctx.contract.wire.hash[:16]
    assert labels.get(names.GROUP_HASH) == (ctx.contract.hash[:16] if role == "prefill" else None)
    assert names.REVISION not in labels


def test_a_pod_template_is_merged_and_our_labels_stand() -> None:
    told = {
        "metadata": {"labels": {"team": "a", names.ROLE: "router"}, "annotations": {"x": "y"}},
        "spec": {
            "nodeSelector": {"pool": "b"},
            "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
            "containers": [{"name": "engine", "tty": True}, {"name": "side", "image": "s"}],
        },
    }
    made = template(known(decode={"podTemplate": told}), "decode")
    assert made["metadata"]["labels"]["team"] == "a"
    assert made["metadata"]["labels"][names.ROLE] == "decode"
    assert made["metadata"]["annotations"] == {"x": "y"}
    of = made["spec"]
    assert of["nodeSelector"] == {"pool": "b"}
    assert [t["key"] for t in of["tolerations"]] == ["nvidia.com/gpu", "kwok.x-k8s.io/node"]
    assert [c["name"] for c in of["containers"]] == ["engine", "side"]
    assert container(of)["tty"] is True
    assert container(of)["command"][:3] == ["python3", "-m", "plait.engine"]
    assert "tty" not in container(template(known(decode={"podTemplate": told}), "prefill")["spec"])


@pytest.mark.parametrize("role", ROLES)
def test_the_contract_is_the_one_that_the_preflight_compares(role: str) -> None:
    ctx = known()
    assert ctx.contract is not None
    made = contract_map(ctx, role)
    [mounted] = [v for v in template(ctx, role)["spec"]["volumes"] if v["name"] == "contract"]
    assert mounted["configMap"]["name"] == made["metadata"]["name"]
    assert made["immutable"] is True
    read = ContractFile.model_validate_json(made["data"]["contract.json"])
    assert read.role == role
    assert read.wire_contract() == ctx.contract.wire
    assert read.group_contract() == (ctx.contract if role == "prefill" else None)


def test_there_are_no_pods_before_the_shape_is_known() -> None:
    with pytest.raises(ValueError, match="shape is known"):
        pod_of(context(), "prefill", contract_map="c")
    with pytest.raises(ValueError, match="role='router'"):
        pod_of(known(), "router", contract_map="c")


@pytest.mark.parametrize("role", ROLES)
def test_a_template_is_json_and_made_anew_each_time(role: str) -> None:
    ctx = known(transfer=RDMA, prefill={"podTemplate": {"spec": {"tolerations": [{"key": "a"}]}}})
    one = template(ctx, role)
    text = json.dumps(one)
    one["spec"]["containers"][0]["env"].clear()
    one["spec"]["tolerations"].clear()
    one["metadata"]["labels"].clear()
    assert json.dumps(template(ctx, role)) == text
