"""Rotary embeddings without a GPU, and the MoE width padding that must not happen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from plait.engine.install import implements


@implements("layers.rotary_embedding.factory.get_rope_cpu")
def get_rope_cpu(
    original: Callable[..., Any],
    head_size: int,
    rotary_dim: int,
    max_position: int,
    base: int,
    is_neox_style: bool = True,
    rope_scaling: dict[str, Any] | None = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    if rope_scaling is None:
        from sglang.srt.layers.rotary_embedding.factory import get_rope

        return get_rope(head_size, rotary_dim, max_position, base, is_neox_style)
    return original(head_size, rotary_dim, max_position, base, is_neox_style, rope_scaling, *args, **kwargs)


@implements("layers.rotary_embedding.rope_variant.DeepseekScalingRotaryEmbedding.forward_native")
def forward_native(
    original: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    self: Any,
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    offsets: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    key3 = key.unsqueeze(1) if key.dim() == 2 else key
    rotated_query, rotated_key = original(self, positions, query, key3, offsets)
    return rotated_query.reshape(query.shape), rotated_key.reshape(key.shape)


@implements("configs.update_config.adjust_config_with_unaligned_cpu_tp")
def keep_config(model_config: Any, load_config: Any, tp_size: int) -> Any:
    del load_config, tp_size
    return model_config
