import json
from pathlib import Path
from typing import Any

import pytest

from plait.contract.config import StackConfig
from plait.contract.validate.stack import validate_file, validate_stack

SHAPE: dict[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 3,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "vocab_size": 512,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "index_n_heads": 16,
    "index_head_dim": 128,
    "index_topk": 64,
}


def stack(**sections: dict[str, Any]) -> StackConfig:
    base: dict[str, Any] = {"model": {"shape": SHAPE}, "prefill": {"contextParallel": 4}}
    return StackConfig.model_validate(base | sections)


def fields(**sections: dict[str, Any]) -> list[str]:
    return [v.field for v in validate_stack(stack(**sections))]


def test_a_small_stack_passes() -> None:
    assert fields() == []
    assert fields(cache={"layout": "replicated", "split": "page-zigzag", "dtype": "fp8_e4m3"}) == []


@pytest.mark.parametrize(
    ("section", "value", "field"),
    [
        ("cache", {"split": "token-round-robin"}, "cache.split"),
        ("cache", {"layout": "plain"}, "cache.layout"),
        ("cache", {"layout": "off"}, "cache.layout"),
        ("cache", {"layout": "sharded"}, "cache.layout"),
        ("cache", {"pageSize": 128}, "cache.pageSize"),
        ("cache", {"dtype": "int4"}, "cache.dtype"),
        ("cache", {"scratchTokens": 100}, "cache.scratchTokens"),
        ("prefill", {"contextParallel": 1}, "prefill.contextParallel"),
        ("prefill", {}, "prefill.contextParallel"),
        ("transfer", {"backend": "nixl"}, "transfer.backend"),
        ("engine", {"version": "0.5.18"}, "engine.version"),
        ("decode", {"args": {"dcp_size": 2}}, "decode.args.dcp_size"),
        ("decode", {"args": {"disaggregation_mode": "null"}}, "decode.args.disaggregation_mode"),
        ("model", {"shape": SHAPE | {"index_topk_freq": 2}}, "model.shape.index_topk_freq"),
        ("model", {"shape": SHAPE | {"hidden_size": "x"}}, "model.shape.hidden_size"),
        ("model", {}, "model.path"),
    ],
)
def test_each_fault_is_told_once_at_its_own_place(section: str, value: dict[str, Any], field: str) -> None:
    assert fields(**{section: value}) == [field]


@pytest.mark.parametrize("layout", ["foo", "sharded", "off", "plain"])
def test_only_layouts_of_a_stack_are_proposed(layout: str) -> None:
    [violation] = validate_stack(stack(cache={"layout": layout}))
    assert violation.fix == "shared, or replicated (the reference)"


def test_token_round_robin_says_why() -> None:
    [violation] = validate_stack(stack(cache={"split": "token-round-robin"}))
    assert "part of every page" in violation.reason


@pytest.mark.parametrize(
    ("prefill", "decode", "field"),
    [
        ({"kv_cache_dtype": "fp8_e4m3"}, {"kv_cache_dtype": "bfloat16"}, "decode.args.kv_cache_dtype"),
        ({}, {"kv_cache_dtype": "bfloat16"}, "decode.args.kv_cache_dtype"),
        ({"dtype": "float32"}, {"dtype": "bfloat16"}, "decode.args.dtype"),
        ({"model_path": "/a"}, {"model_path": "/b"}, "decode.args.model_path"),
        ({"chat_template": "a"}, {}, "decode.args.chat_template"),
        ({"tokenizer_path": "/a"}, {"tokenizer_path": "/b"}, "decode.args.tokenizer_path"),
        ({"context_length": 4096}, {"context_length": 2048}, "decode.args.context_length"),
        (
            {"disaggregation_transfer_backend": "mooncake"},
            {"disaggregation_transfer_backend": "mooncake_tcp"},
            "decode.args.disaggregation_transfer_backend",
        ),
    ],
)
def test_contracts_that_differ(prefill: dict[str, Any], decode: dict[str, Any], field: str) -> None:
    found = validate_stack(stack(prefill={"contextParallel": 4, "args": prefill}, decode={"args": decode}))
    differing = [v for v in found if "must agree" in v.reason]
    assert [v.field.replace("transfer.backend", field) for v in differing] == [field]


def test_two_spellings_of_one_value_agree() -> None:
    args = {"kv_cache_dtype": "bf16"}, {"kv_cache_dtype": "bfloat16"}
    assert fields(prefill={"contextParallel": 2, "args": args[0]}, decode={"args": args[1]}) == []
    assert fields(decode={"args": {"kv_cache_dtype": "auto"}}) == []


def test_scratch_and_context_length() -> None:
    model = {"shape": SHAPE, "contextLength": 2048}
    assert fields(model=model, cache={"scratchTokens": 2048}) == []
    assert fields(model=model, cache={"scratchTokens": 1024}) == ["cache.scratchTokens"]


def test_shape_is_read_from_the_models_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SHAPE | {"cli_factor": 2}))
    [violation] = validate_stack(stack(model={"path": str(tmp_path)}))
    assert violation.field == "model.path:config.json:cli_factor"
    both = validate_stack(stack(model={"path": str(tmp_path), "shape": SHAPE}))
    assert [v.field for v in both] == ["model.shape"]
    assert fields(model={"path": "/not/on/this/machine"}) == []


def test_a_file_gives_form_and_contract_in_one_list(tmp_path: Path) -> None:
    file = tmp_path / "stack.json"
    told = {
        "model": {"shape": SHAPE},
        "cache": {"split": "round-robin", "scratchTokens": "x"},
        "prefill": {"contextParallel": "4", "args": {"--page-size": 1}},
        "decode": {"replicas": 0, "args": {"enable_lora": True}},
        "colour": 1,
    }
    file.write_text(json.dumps(told))
    assert {v.field for v in validate_file(file)} == {
        "colour",
        "cache.split",
        "cache.scratchTokens",
        "prefill.contextParallel",
        "prefill.args.--page-size",
        "decode.replicas",
        "decode.args.enable_lora",
        "cache.pageSize",
    }


def test_a_good_file_and_a_missing_one(tmp_path: Path) -> None:
    file = tmp_path / "stack.yaml"
    file.write_text(json.dumps({"model": {"shape": SHAPE}, "prefill": {"contextParallel": 2}}))
    assert validate_file(file) == []
    assert [v.field for v in validate_file(tmp_path / "no.yaml")] == [str(tmp_path / "no.yaml")]


def test_repeated_keys_do_not_hide_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "stack.yaml"
    file.write_text(
        f"model: {json.dumps({'shape': SHAPE})}\nprefill: {{contextParallel: 2}}\n"
        "decode: {replicas: 1}\ndecode: {args: {enable_lora: true}}\n"
    )
    assert [v.field for v in validate_file(file)] == ["decode", "decode.args.enable_lora"]
