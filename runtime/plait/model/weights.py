"""Random weights whose outputs depend on what the KV cache holds.

Dummy weights (std 0.02 or less) let attention contribute almost nothing, so a broken cache goes unseen.
Here every matrix has std >= 0.05, and the attention branch is as strong as the residual stream.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from plait.model.shape import VOCAB_SIZE, TinyShape

MIN_STD = 0.05


class _Draw:
    """Draws tensors in a fixed order from one generator, so that a seed decides every byte."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def _normal(self, *size: int) -> torch.Tensor:
        return torch.randn(*size, generator=self._generator, dtype=torch.float32)

    def matrix(self, rows: int, cols: int, std: float | None = None) -> torch.Tensor:
        """(rows, cols) bf16; without `std` the output keeps the input's scale (1/sqrt(cols), floored)."""
        spread = max(MIN_STD, cols**-0.5) if std is None else std
        return (self._normal(rows, cols) * spread).to(torch.bfloat16)

    def gain(self, size: int) -> torch.Tensor:
        """(size,) bf16 norm weight around 1, not all equal, so that a permuted row shows."""
        return (1.0 + 0.1 * self._normal(size)).to(torch.bfloat16)

    def bias(self, size: int, std: float, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return (self._normal(size) * std).to(dtype)


def _attention(draw: _Draw, shape: TinyShape, at: str) -> Iterator[tuple[str, torch.Tensor]]:
    query = shape.heads * (shape.nope_dim + shape.rope_dim)
    yield f"{at}q_a_proj.weight", draw.matrix(shape.q_lora_rank, shape.hidden)
    yield f"{at}q_a_layernorm.weight", draw.gain(shape.q_lora_rank)
    # Sharper than 1/sqrt: softmax must prefer some keys, or every selection gives the same average.
    yield f"{at}q_b_proj.weight", draw.matrix(query, shape.q_lora_rank, std=0.15)
    yield (
        f"{at}kv_a_proj_with_mqa.weight",
        draw.matrix(shape.kv_lora_rank + shape.rope_dim, shape.hidden, std=0.1),
    )
    yield f"{at}kv_a_layernorm.weight", draw.gain(shape.kv_lora_rank)
    up = shape.heads * (shape.nope_dim + shape.v_dim)
    yield f"{at}kv_b_proj.weight", draw.matrix(up, shape.kv_lora_rank, std=0.1)
    yield f"{at}o_proj.weight", draw.matrix(shape.hidden, shape.heads * shape.v_dim, std=0.05)
    yield f"{at}indexer.wq_b.weight", draw.matrix(shape.index_heads * shape.index_dim, shape.q_lora_rank)
    yield f"{at}indexer.wk.weight", draw.matrix(shape.index_dim, shape.hidden)
    yield f"{at}indexer.k_norm.weight", draw.gain(shape.index_dim)
    yield f"{at}indexer.k_norm.bias", draw.bias(shape.index_dim, 0.05)
    yield f"{at}indexer.weights_proj.weight", draw.matrix(shape.index_heads, shape.hidden)


def _mlp(draw: _Draw, shape: TinyShape, at: str, width: int) -> Iterator[tuple[str, torch.Tensor]]:
    yield f"{at}gate_proj.weight", draw.matrix(width, shape.hidden)
    yield f"{at}up_proj.weight", draw.matrix(width, shape.hidden)
    yield f"{at}down_proj.weight", draw.matrix(shape.hidden, width)


def _experts(draw: _Draw, shape: TinyShape, at: str) -> Iterator[tuple[str, torch.Tensor]]:
    yield f"{at}gate.weight", draw.matrix(shape.experts, shape.hidden)
    yield f"{at}gate.e_score_correction_bias", draw.bias(shape.experts, 0.1, torch.float32)
    for expert in range(shape.experts):
        yield from _mlp(draw, shape, f"{at}experts.{expert}.", shape.moe_width)
    yield from _mlp(draw, shape, f"{at}shared_experts.", shape.moe_width)


def tiny_weights(shape: TinyShape) -> dict[str, torch.Tensor]:
    """All tensors by checkpoint name: bf16, but the router's correction bias, which is float32.

    Equal shapes (seed included) give equal bytes.
    """
    draw = _Draw(shape.seed)
    tensors: dict[str, torch.Tensor] = {
        "model.embed_tokens.weight": draw.matrix(VOCAB_SIZE, shape.hidden, std=1.0),
        # 0.3 spreads the logits to a std of about 5: greedy choices are clear, not coin tosses.
        "lm_head.weight": draw.matrix(VOCAB_SIZE, shape.hidden, std=0.3),
        "model.norm.weight": draw.gain(shape.hidden),
    }
    for layer in range(shape.layers):
        at = f"model.layers.{layer}."
        tensors[f"{at}input_layernorm.weight"] = draw.gain(shape.hidden)
        tensors.update(_attention(draw, shape, f"{at}self_attn."))
        tensors[f"{at}post_attention_layernorm.weight"] = draw.gain(shape.hidden)
        if layer < shape.dense_layers:
            tensors.update(_mlp(draw, shape, f"{at}mlp.", shape.mlp_width))
        else:
            tensors.update(_experts(draw, shape, f"{at}mlp."))
    return tensors
