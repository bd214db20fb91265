import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from plait.contract.shape import CONFIG_FIELDS, ModelShape
from plait.contract.violation import ContractError

GLM: dict[str, Any] = {
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
    "max_position_embeddings": 8192,
    "num_nextn_predict_layers": 1,
    "torch_dtype": "bfloat16",
    "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
}
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "vocab_size": 100,
}


def test_from_folder_and_from_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GLM))
    shape = ModelShape.from_path(tmp_path)
    assert shape == ModelShape.from_path(tmp_path / "config.json") == ModelShape.from_config(GLM)
    assert (shape.num_hidden_layers, shape.index_n_heads, shape.dtype) == (3, 16, "bfloat16")
    assert shape.is_dsa
    assert not shape.shares_index
    assert (shape.rows("fp8_e4m3").mla, shape.rows("fp8_e4m3").index) == (656, 132)


def test_a_model_without_sparse_attention_needs_none_of_its_sizes() -> None:
    shape = ModelShape.from_config(LLAMA)
    assert not shape.is_dsa
    assert shape.kv_lora_rank == 0


def test_a_dsa_class_without_selection_is_not_dsa() -> None:
    config = {k: v for k, v in GLM.items() if not k.startswith("index_")}
    assert not ModelShape.from_config(config).is_dsa


@pytest.mark.parametrize(
    ("extra", "shares"),
    [
        ({}, False),
        ({"index_topk_freq": 1}, False),
        ({"index_topk_freq": None}, False),
        ({"index_topk_freq": 2}, True),
        ({"index_topk_pattern": "FFF"}, False),
        ({"index_topk_pattern": "FSF"}, True),
        ({"index_topk_pattern": ["F", "S"]}, True),
        ({"cli_factor": 2}, True),
    ],
)
def test_index_share(extra: dict[str, Any], shares: bool) -> None:
    assert ModelShape.from_config({**GLM, **extra}).shares_index is shares


def test_every_bad_field_is_named_with_the_file() -> None:
    broken = {**GLM, "hidden_size": "256", "num_hidden_layers": 0, "kv_lora_rank": True}
    del broken["index_head_dim"]
    with pytest.raises(ContractError) as caught:
        ModelShape.from_config(broken, source="/m/config.json")
    fields = [v.field for v in caught.value.violations]
    assert fields == [
        f"/m/config.json:{name}"
        for name in ("num_hidden_layers", "hidden_size", "kv_lora_rank", "index_head_dim")
    ]


@pytest.mark.parametrize("field", ["hidden_size", "vocab_size", "num_hidden_layers"])
def test_a_count_out_of_all_range_is_refused(field: str) -> None:
    # Bytes and tokens are reckoned from it, with fractions: that must not overflow.
    with pytest.raises(ContractError) as caught:
        ModelShape.from_config({**GLM, field: 10**400})
    assert [violation.field for violation in caught.value.violations] == [f"config.json:{field}"]


@pytest.mark.parametrize("architectures", [None, [], "GlmMoeDsaForCausalLM", [1]])
def test_architectures_must_be_a_list_of_names(architectures: object) -> None:
    with pytest.raises(ContractError, match="architectures"):
        ModelShape.from_config({**GLM, "architectures": architectures})


@pytest.mark.parametrize("config", [[1], "x", 3, None])
def test_a_config_that_is_no_object_is_refused(config: object) -> None:
    with pytest.raises(ContractError) as caught:
        ModelShape.from_config(config, source="c.json")
    [told] = caught.value.violations
    assert (told.field, told.value, told.reason) == ("c.json", config, "not a JSON object")


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_an_unreadable_file_is_named(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ContractError, match=r"config\.json"):
        ModelShape.from_path(tmp_path)


def test_digest_follows_contents_and_nothing_else() -> None:
    base = ModelShape.from_config(GLM).digest()
    shuffled = dict(reversed(GLM.items()))
    assert ModelShape.from_config(shuffled).digest() == base
    for same in ({"max_position_embeddings": 1}, {"torch_dtype": "float32"}, {"num_nextn_predict_layers": 0}):
        assert ModelShape.from_config({**GLM, **same}).digest() == base
    changed = [
        {"num_hidden_layers": 4},
        {"index_topk": 128},
        {"rope_parameters": {"rope_theta": 10000, "rope_type": "default"}},
        {"quantization_config": {"quant_method": "fp8"}},
        {"architectures": ["DeepseekV32ForCausalLM"]},
    ]
    digests = {ModelShape.from_config({**GLM, **change}).digest() for change in changed}
    assert len(digests | {base}) == len(changed) + 1


def test_digest_is_the_same_in_another_process() -> None:
    code = (
        "import json, sys; from plait.contract.shape import ModelShape;"
        "print(ModelShape.from_config(json.load(sys.stdin)).digest())"
    )
    told = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(GLM),
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == ModelShape.from_config(GLM).digest()


class Recording(dict[str, Any]):
    """A config that notes which fields are asked for."""

    def __init__(self, told: dict[str, Any]) -> None:
        super().__init__(told)
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)


def test_the_fields_of_a_config_are_all_listed() -> None:
    config = Recording({name: value for name, value in GLM.items() if name != "torch_dtype"})
    shape = ModelShape.from_config(config)
    assert config.asked == set(CONFIG_FIELDS)
    kept = {name: value for name, value in {**GLM, "hidden_act": "silu"}.items() if name in CONFIG_FIELDS}
    assert ModelShape.from_config(kept).digest() == shape.digest()
