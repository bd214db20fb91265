"""Torch reads and writes of the pools, byte for byte what the CUDA kernels leave there."""

from __future__ import annotations

from typing import Any

import torch

from plait.engine.install import implements


@implements("mem_cache.memory_pool.set_mla_kv_buffer_triton")
def set_mla_kv_buffer(
    kv_buffer: torch.Tensor, loc: torch.Tensor, cache_k_nope: torch.Tensor, cache_k_rope: torch.Tensor
) -> None:
    """Write rows [tokens, latent + rope] to `kv_buffer` [slots, 1, latent + rope] at `loc` [tokens]."""
    rows = torch.cat([cache_k_nope.reshape(loc.numel(), -1), cache_k_rope.reshape(loc.numel(), -1)], -1)
    kv_buffer.view(kv_buffer.shape[0], -1)[loc.long()] = rows


@implements("mem_cache.memory_pool.get_mla_kv_buffer_triton")
def get_mla_kv_buffer(
    kv_buffer: torch.Tensor, loc: torch.Tensor, cache_k_nope: torch.Tensor, cache_k_rope: torch.Tensor
) -> None:
    """Read rows at `loc` into `cache_k_nope` and `cache_k_rope`, converting dtypes."""
    rows = kv_buffer.view(kv_buffer.shape[0], -1)[loc.long()]
    latent = cache_k_nope.shape[-1]
    cache_k_nope.copy_(rows[:, :latent].view(cache_k_nope.shape))
    cache_k_rope.copy_(rows[:, latent:].view(cache_k_rope.shape))


@implements("mem_cache.memory_pool.DSATokenToKVPool.set_index_k_scale_buffer")
def set_index_k_scale_buffer(
    self: Any, layer_id: int, loc: torch.Tensor, index_k: torch.Tensor, index_k_scale: torch.Tensor
) -> None:
    """Write FP8 keys [tokens, 128] and fp32 scales [tokens] to their page: 64*128 key bytes, then 64*4."""
    buffer = self.get_index_k_with_scale_buffer(layer_id)
    page_size, dim = self.page_size, self.index_head_dim
    page, row = loc.long() // page_size, loc.long() % page_size
    keys = buffer[:, : page_size * dim].view(-1, page_size, dim)
    scales = buffer[:, page_size * dim :].view(-1, page_size, 4)
    keys[page, row] = index_k.contiguous().view(torch.uint8)
    scales[page, row] = index_k_scale.reshape(-1, 1).contiguous().view(torch.uint8)


def index_keys_at(buffer: torch.Tensor, slots: torch.Tensor, *, page_size: int, dim: int) -> torch.Tensor:
    """Dequantised indexer keys, float32 [tokens, dim], at token slots of `buffer` [pages, bytes]."""
    page, row = slots // page_size, slots % page_size
    keys = buffer[:, : page_size * dim].view(-1, page_size, dim)[page, row]
    scales = buffer[:, page_size * dim :].view(-1, page_size, 4)[page, row]
    return keys.contiguous().view(torch.float8_e4m3fn).float() * scales.contiguous().view(torch.float32)
