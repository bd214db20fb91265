"""Shapes of models that Plait knows by name, so that nothing has to be read before engines are planned.

The fields are those of the public config.json (only what a `ModelShape` reads), so that a family's digest is
the one that an engine computes from the model's own file.
"""

from __future__ import annotations

from typing import Any

from plait.contract.shape import ModelShape

# zai-org/GLM-5, config.json as published; SHA-256 of the file:
# 308d3ceebe7bd9c2246d20550d5b793098dd03838d1e504f8236063ae152bcae
_GLM_5: dict[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "dtype": "bfloat16",
    "num_hidden_layers": 78,
    "hidden_size": 6144,
    "num_attention_heads": 64,
    "vocab_size": 154880,
    "q_lora_rank": 2048,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "index_n_heads": 32,
    "index_head_dim": 128,
    "index_topk": 2048,
    "max_position_embeddings": 202752,
    "num_nextn_predict_layers": 1,
    "intermediate_size": 12288,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
    "rope_interleave": True,
    "indexer_rope_interleave": True,
}

# deepseek-ai/DeepSeek-V3.2, config.json as published (of quantization_config only the method is read).
_DEEPSEEK_V32: dict[str, Any] = {
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "vocab_size": 129280,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 2048,
    "max_position_embeddings": 163840,
    "num_nextn_predict_layers": 1,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "quantization_config": {"quant_method": "fp8"},
    "rope_theta": 10000,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
}

FAMILIES: dict[str, ModelShape] = {
    "glm-5": ModelShape.from_config(_GLM_5, source="glm-5"),
    # zai-org/GLM-5-FP8: the same sizes, weights in FP8 blocks.
    "glm-5-fp8": ModelShape.from_config(
        {**_GLM_5, "quantization_config": {"quant_method": "fp8"}}, source="glm-5-fp8"
    ),
    "deepseek-v3.2": ModelShape.from_config(_DEEPSEEK_V32, source="deepseek-v3.2"),
}
"""Name of a family -> shape of its published checkpoint."""
