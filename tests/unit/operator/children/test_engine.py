"""The engine's command line and environment in a pod."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.operator.children.engines import GLM, ROLES, container, env, known, pod, value

from plait.contract.launch import CPU_FLAGS
from plait.contract.settings import Settings
from plait.contract.validate import parse_engine_argv, validate_launch
from plait.contract.violation import ContractError
from plait_operator.children.engine import environment, flags

HUB = {**GLM, "source": {"hub": {"repo": "zai-org/GLM-5", "secretRef": {"name": "hub"}}}, "revision": "v1"}
CPU = {"engine": {"image": "sglang", "device": "cpu"}, "transfer": {"backend": "mooncake_tcp"}}
SPECS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "rdma devices": {"transfer": {"rdma": {"resource": "rdma/hca", "devices": ["mlx5_0", "mlx5_1"]}}},
    "tcp": {"transfer": {"backend": "mooncake_tcp"}},
    "bf16": {"cache": {"dtype": "bfloat16"}},
    "replicated zigzag": {"cache": {"layout": "replicated", "split": "page-zigzag"}},
    "no prefetch, scratch": {"cache": {"prefetch": False, "scratchTokens": 262144}},
    "sized": {"prefill": {"contextParallel": 4, "chunk": 4096, "maxTotalTokens": 65536}},
    "hub": {"model": HUB},
    "cpu": {**CPU, "prefill": {"contextParallel": 2, "maxTotalTokens": 8192, "chunk": 256}},
    "args": {
        "engine": {"image": "i", "args": {"mem_fraction_static": 0.8, "--log-level-http": "info"}},
        "prefill": {"args": {"mem-fraction-static": 0.7, "sleep_on_idle": False}},
        "decode": {"args": {"max_total_tokens": 4096, "disable_cuda_graph": True}},
    },
}


def plain(variables: list[dict[str, Any]]) -> dict[str, str]:
    return {v["name"]: v.get("value", "from the cluster") for v in variables}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_the_engine_accepts_what_a_pod_gives_it(role: str, spec: dict[str, Any]) -> None:
    ctx = known(**spec)
    variables = plain(environment(ctx, role))
    assert validate_launch(flags(ctx, role), variables, engine_version="0.5.17") == []
    settings = Settings.from_env(variables)
    wanted = ctx.deployment.spec.cache
    assert settings.layout == (wanted.layout if role == "prefill" else "plain")
    assert settings.cpu == (ctx.deployment.spec.engine.device == "cpu")
    if role == "prefill":
        assert settings.split == wanted.split
        assert (settings.prefetch, settings.scratch_tokens) == (wanted.prefetch, wanted.scratch_tokens)


def read(role: str, **spec: Any) -> dict[str, object]:
    return parse_engine_argv(flags(known(**spec), role))


def test_prefill_of_glm_5_on_eight_gpus() -> None:
    assert read("prefill") == {
        "model_path": "/model/glm-5",
        "served_model_name": "GLM-5",
        "host": "0.0.0.0",
        "port": 30000,
        "context_length": 202752,
        "attention_backend": "dsa",
        "page_size": 64,
        "skip_server_warmup": True,
        "sleep_on_idle": True,
        "log_level_http": "warning",
        "disable_cuda_graph": True,
        "disable_overlap_schedule": True,
        "chunked_prefill_size": 8192,
        "disaggregation_mode": "prefill",
        "disaggregation_transfer_backend": "mooncake",
        "disaggregation_bootstrap_port": 8998,
        "tp_size": 8,
        "attn_cp_size": 8,
        "enable_prefill_cp": True,
        "cp_strategy": "interleave",
        "kv_cache_dtype": "fp8_e4m3",
        "dsa_prefill_backend": "flashmla_kv",
        "dsa_decode_backend": "flashmla_kv",
    }


def test_decode_has_no_group_and_keeps_the_engines_own_graphs() -> None:
    told = read("decode")
    assert told["disaggregation_mode"] == "decode"
    assert set(told).isdisjoint(
        {"tp_size", "attn_cp_size", "disable_cuda_graph", "disaggregation_bootstrap_port", "max_total_tokens"}
    )


@pytest.mark.parametrize("role", ROLES)
def test_a_cpu_engine_has_the_flags_of_plait_up(role: str) -> None:
    told = flags(known(**SPECS["cpu"]), role)
    assert [word for word in told if word in CPU_FLAGS] == list(CPU_FLAGS)
    assert value(told, "--dtype") == "float32"
    assert value(told, "--kv-cache-dtype") == "bfloat16"


def test_bf16_leaves_the_kernel_to_the_engine() -> None:
    told = read("prefill", **SPECS["bf16"])
    assert told["kv_cache_dtype"] == "bfloat16"
    assert "dsa_prefill_backend" not in told


def test_arguments_of_a_role_go_over_the_shared_ones_and_over_ours() -> None:
    prefill, decode = (read(role, **SPECS["args"]) for role in ROLES)
    assert (prefill["mem_fraction_static"], decode["mem_fraction_static"]) == (0.7, 0.8)
    assert prefill["log_level_http"] == decode["log_level_http"] == "info"
    assert "sleep_on_idle" not in prefill
    assert decode["sleep_on_idle"] is True
    assert decode["max_total_tokens"] == 4096


def test_arguments_in_another_order_are_the_same_command() -> None:
    args = {"mem_fraction_static": 0.8, "log_level": "debug", "port": 1}
    turned = dict(reversed(args.items()))
    one, other = (flags(known(engine={"image": "i", "args": a}), "prefill") for a in (args, turned))
    assert one == other


def test_an_unknown_argument_is_told_by_its_path() -> None:
    with pytest.raises(ContractError, match=r"spec\.decode\.args\.mem_fracton_static"):
        flags(known(decode={"args": {"mem_fracton_static": 1}}), "decode")
    with pytest.raises(ContractError, match=r"spec\.engine\.args\.nope"):
        flags(known(engine={"image": "i", "args": {"nope": 1}}), "decode")


@pytest.mark.parametrize("role", ROLES)
def test_a_hub_is_asked_with_the_token_and_at_the_revision(role: str) -> None:
    of = container(pod(role, model=HUB))
    variables = env(of)
    assert value(of["command"], "--model-path") == "zai-org/GLM-5"
    assert value(of["command"], "--revision") == "v1"
    assert variables["HF_TOKEN"] == {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert variables["HF_HOME"] == "/hub"
    assert "HF_HUB_OFFLINE" not in variables


@pytest.mark.parametrize("role", ROLES)
def test_a_model_on_disk_asks_no_hub(role: str) -> None:
    of = container(pod(role, model={**GLM, "revision": "v1"}))
    assert env(of)["HF_HUB_OFFLINE"] == "1"
    assert "--revision" not in of["command"]
    assert "HF_TOKEN" not in env(of)


def test_devices_reach_the_transfer_engine() -> None:
    for role in ROLES:
        assert read(role, **SPECS["rdma devices"])["disaggregation_ib_device"] == "mlx5_0,mlx5_1"
        assert "disaggregation_ib_device" not in read(role, transfer={"rdma": {"resource": "rdma/hca"}})


def test_only_tcp_needs_a_longer_queue() -> None:
    name = "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER"
    for role in ROLES:
        assert int(env(container(pod(role, **SPECS["tcp"])))[name]) > 4096
        assert name not in env(container(pod(role)))


def test_the_users_variables_are_last_and_the_roles_win() -> None:
    mine = [{"name": "NCCL_DEBUG", "value": "INFO"}, {"name": "SGLANG_HOST_IP", "value": "10.0.0.1"}]
    role = [{"name": "NCCL_DEBUG", "value": "WARN"}]
    told = environment(known(engine={"image": "i", "env": mine}, decode={"env": role}), "decode")
    assert told[-2:] == [mine[1], role[0]]
    other = environment(known(engine={"image": "i", "env": mine}, decode={"env": role}), "prefill")
    assert other[-2:] == mine


def test_the_other_side_is_told_the_pods_own_address() -> None:
    for role in ROLES:
        told = env(container(pod(role)))["SGLANG_HOST_IP"]
        assert told == {"fieldRef": {"fieldPath": "status.podIP"}}


def test_a_group_over_nodes_meets_at_its_leader() -> None:
    spec: dict[str, Any] = {"prefill": {"nodesPerGroup": 2}, **SPECS["rdma devices"]}
    told = flags(known(**spec), "prefill")
    assert value(told, "--nnodes") == "2"
    assert value(told, "--node-rank") == "$(LWS_WORKER_INDEX)"
    assert value(told, "--dist-init-addr") == "$(LWS_LEADER_ADDRESS):20000"
    assert value(told, "--tp-size") == "8"
    assert env(container(pod("prefill", **spec)))["NCCL_IB_HCA"] == "=mlx5_0,mlx5_1"
    assert "--nnodes" not in flags(known(**spec), "decode")
    assert "NCCL_IB_HCA" not in env(container(pod("decode", **spec)))


def test_data_parallel_decode_says_so_to_the_engine() -> None:
    assert read("decode", decode={"dataParallel": 4})["dp_size"] == 4
    assert "dp_size" not in read("decode")
