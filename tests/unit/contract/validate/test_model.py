from dataclasses import replace
from typing import Any

import pytest

from plait.contract.shape import ModelShape
from plait.contract.validate.model import validate_model

GLM = ModelShape(
    architectures=("GlmMoeDsaForCausalLM",),
    model_type="glm_moe_dsa",
    num_hidden_layers=3,
    hidden_size=256,
    num_attention_heads=8,
    vocab_size=512,
    kv_lora_rank=512,
    qk_rope_head_dim=64,
    index_n_heads=16,
    index_head_dim=128,
    index_topk=64,
)


def test_models_that_are_served() -> None:
    assert validate_model(GLM, path="model") == []
    assert validate_model(replace(GLM, architectures=("DeepseekV32ForCausalLM",)), path="model") == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"index_topk_freq": 2}, "model.index_topk_freq"),
        ({"index_topk_pattern": "FSF"}, "model.index_topk_pattern"),
        ({"cli_factor": 4}, "model.cli_factor"),
        ({"architectures": ("LlamaForCausalLM",)}, "model.architectures"),
        ({"index_topk": 0}, "model.architectures"),
        ({"architectures": ("PixtralForConditionalGeneration",)}, "model.architectures"),
        ({"kv_lora_rank": 500}, "model.kv_lora_rank"),
        ({"index_head_dim": 64}, "model.index_head_dim"),
    ],
)
def test_models_that_are_refused(change: dict[str, Any], field: str) -> None:
    [violation] = validate_model(replace(GLM, **change), path="model")
    assert violation.field == field


def test_all_at_once() -> None:
    shape = replace(GLM, architectures=("LongcatFlashForCausalLM",), cli_factor=2, kv_lora_rank=500)
    assert [v.field for v in validate_model(shape, path="m")] == [
        "m.architectures",
        "m.cli_factor",
        "m.kv_lora_rank",
    ]
