"""The shape of a tiny model: GLM-5's architecture with real KV rows and everything else made small.

What a KV cache sees is kept at its real size (latent 512 + rope 64, index key 128), so that row and page
bytes, kernels and transfers are those of the big model; width, depth, experts and vocabulary are cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

VOCAB_SIZE = 512
# The engine shards MoE and MLP widths over the CP ranks in units of 32 columns (its CPU path pads a width
# that does not divide); 8 ranks x 32 keeps every width exact up to CP 8.
WIDTH_UNIT = 256


class ShapeError(ValueError):
    """A shape that no engine could run; names field, value and fix."""


@dataclass(frozen=True, kw_only=True)
class TinyShape:
    """Everything that decides the files of a tiny model, bit for bit.

    `topk`: keys that the indexer selects per query; `index_heads`: indexer query heads (with too few,
    ReLU scores tie at 0 and selection becomes arbitrary); `layers`: decoder layers, the first one dense;
    `context`: longest sequence in tokens; `hidden`, `heads`, `experts`: as in the engine's config.
    """

    topk: int = 64
    index_heads: int = 16
    layers: int = 3
    seed: int = 0
    context: int = 8192
    hidden: int = 256
    heads: int = 8
    experts: int = 8
    q_lora_rank: int = 128
    kv_lora_rank: int = 512
    rope_dim: int = 64
    nope_dim: int = 192
    v_dim: int = 256
    index_dim: int = 128
    mlp_width: int = 512
    moe_width: int = 256
    experts_per_token: int = 2
    dense_layers: int = 1

    def __post_init__(self) -> None:
        self._at_least("topk", 1, "select at least one key")
        self._at_least("index_heads", 16, "with fewer heads index scores tie at exactly 0")
        self._at_least("layers", 2, "one dense and one expert layer are the least that tests both kinds")
        self._at_least("seed", 0, "any number from 0 on")
        self._at_least("context", 128, "two pages of 64 tokens are the least")
        self._at_least("experts", self.experts_per_token, "each token is sent to that many experts")
        self._divides("heads", 8, "query heads split over up to 8 ranks")
        self._divides("hidden", 64, "hidden width in steps of 64")
        self._divides("mlp_width", WIDTH_UNIT, "MLP width splits over up to 8 ranks in units of 32")
        self._divides("moe_width", WIDTH_UNIT, "expert width splits over up to 8 ranks in units of 32")

    def _at_least(self, field: str, least: int, why: str) -> None:
        value = getattr(self, field)
        if value < least:
            raise ShapeError(f"{field}={value}: must be at least {least} ({why})")

    def _divides(self, field: str, unit: int, why: str) -> None:
        value = getattr(self, field)
        if value <= 0 or value % unit:
            raise ShapeError(f"{field}={value}: must be a positive multiple of {unit} ({why})")


def config_json(shape: TinyShape) -> dict[str, Any]:
    """`config.json` of the model, as a dict ready for `json.dump`."""
    return {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "model_type": "glm_moe_dsa",
        "torch_dtype": "bfloat16",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_nextn_predict_layers": 0,
        "max_position_embeddings": shape.context,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "initializer_range": 0.05,
        "use_cache": True,
        # attention
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "head_dim": shape.rope_dim,
        "qk_head_dim": shape.nope_dim + shape.rope_dim,
        "qk_nope_head_dim": shape.nope_dim,
        "qk_rope_head_dim": shape.rope_dim,
        "v_head_dim": shape.v_dim,
        "kv_lora_rank": shape.kv_lora_rank,
        "q_lora_rank": shape.q_lora_rank,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rope_interleave": True,
        "rope_parameters": {"rope_theta": 1_000_000, "rope_type": "default"},
        # indexer
        "index_topk": shape.topk,
        "index_n_heads": shape.index_heads,
        "index_head_dim": shape.index_dim,
        "indexer_rope_interleave": True,
        # experts
        "first_k_dense_replace": shape.dense_layers,
        "intermediate_size": shape.mlp_width,
        "moe_intermediate_size": shape.moe_width,
        "moe_layer_freq": 1,
        "n_routed_experts": shape.experts,
        "n_shared_experts": 1,
        "num_experts_per_tok": shape.experts_per_token,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "scoring_func": "sigmoid",
        "routed_scaling_factor": 2.5,
        "ep_size": 1,
    }
