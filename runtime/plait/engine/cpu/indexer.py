"""The indexer in torch: quantise, logits, top-k. Metadata, projections and stores stay the engine's own."""

from __future__ import annotations

from typing import Any

import torch

from plait.engine import state
from plait.engine.cpu.stores import index_keys_at
from plait.engine.faults import shifted_rows
from plait.engine.install import implements

_FP8_MAX = 448.0


def quantize(
    x: torch.Tensor, block_size: int = 128, scale_fmt: str | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """FP8 values of `x` [..., d] and one fp32 scale per `block_size` values, as the engine's `act_quant`."""
    shape = x.shape
    blocks = x.float().reshape(*shape[:-1], shape[-1] // block_size, block_size)
    scale = blocks.abs().amax(-1).clamp_min(1e-4) / _FP8_MAX
    if scale_fmt:
        scale = torch.exp2(torch.ceil(torch.log2(scale)))
    return (blocks / scale[..., None]).reshape(shape).to(torch.float8_e4m3fn), scale


@implements("layers.attention.dsa.dsa_indexer.Indexer._maybe_rotate")
def unrotated(self: Any, x: torch.Tensor) -> torch.Tensor:
    del self
    return x


def top_k(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and indices of the k greatest of each row; ties go to the earlier token, whatever the width.

    ReLU logits of few heads tie at exactly 0, so an unstable sort would choose other tokens for another
    row length, and two ranks (or a cold and a cached run) would differ by whole tokens.
    """
    values, indices = logits.sort(dim=-1, descending=True, stable=True)
    return values[:, :k], indices[:, :k]


@implements("layers.attention.dsa.dsa_indexer.Indexer.forward_native")
def forward_native(
    self: Any,
    x: torch.Tensor,
    q_lora: torch.Tensor,
    positions: torch.Tensor,
    forward_batch: Any,
    layer_id: int,
    return_indices: bool = True,
) -> torch.Tensor | None:
    """Slots of the selected tokens, int32 [rows, index_topk]; -1 beyond them and in padded rows."""
    from sglang.srt.model_executor.forward_context import get_attn_backend, get_token_to_kv_pool
    from sglang.srt.state_capturer.indexer_topk import maybe_capture_indexer_topk

    metadata = get_attn_backend().get_indexer_metadata(layer_id, forward_batch)
    if metadata is None:
        return None
    query, key, _ = self._get_q_k_bf16(q_lora, x, positions, False, forward_batch=forward_batch)
    q_fp8, q_scale = quantize(query, self.block_size, self.scale_fmt)
    if state.settings.test_fault is not None:
        key = shifted_rows("shift-index", layer_id, key)
    self._store_index_k_cache(forward_batch=forward_batch, layer_id=layer_id, key=key, act_quant=quantize)
    if not return_indices:
        return None
    weights = torch.nn.functional.linear(x.float(), self.weights_proj.weight.float())
    weights = weights * self.n_heads**-0.5 * self.softmax_scale
    q = q_fp8.float() * q_scale
    selected = torch.full((x.shape[0], self.index_topk), -1, dtype=torch.int32)
    lengths = metadata.get_seqlens_expanded()
    request = metadata.get_token_to_batch_idx()
    if request is None:
        request = torch.arange(lengths.shape[0])
    # As on a GPU: keys by the indexer's own table, what is chosen as slots of attention's.
    table, pages, pool = metadata.get_page_table_1(), metadata.get_page_table_64(), get_token_to_kv_pool()
    buffer = self._get_index_k_read_buffer(pool, layer_id)
    for one in request.unique().tolist():
        rows = (request == one).nonzero().flatten()
        width = int(lengths[rows].max())
        inside = torch.arange(width)
        slots = table[one, :width]
        read = pages[one, inside // pool.page_size].long() * pool.page_size + inside % pool.page_size
        keys = index_keys_at(buffer, read, page_size=pool.page_size, dim=pool.index_head_dim)
        logits = (torch.einsum("thd,kd->thk", q[rows], keys).relu_() * weights[rows][..., None]).sum(1)
        logits.masked_fill_(torch.arange(width)[None] >= lengths[rows][:, None], float("-inf"))
        values, indices = top_k(logits, self.index_topk)
        chosen = slots[indices].masked_fill_(values == float("-inf"), -1)
        selected[rows, : chosen.shape[1]] = chosen
    captured: torch.Tensor = maybe_capture_indexer_topk(layer_id, selected)
    return captured
