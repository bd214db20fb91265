"""Sparse MLA attention in torch, on the stock DSA backend's metadata and CP handling."""

from __future__ import annotations

from typing import Any

import torch

from plait.engine import state
from plait.engine.faults import shifted_rows
from plait.engine.install import implements

_ROWS_AT_ONCE = 256


@implements("layers.attention.attention_registry.ATTENTION_BACKENDS:dsa")
def create_dsa_backend(runner: Any) -> Any:
    """The backend registered as `dsa` (its name is checked by name in the engine)."""
    return _backend_class()(runner)


def _backend_class() -> type:
    from sglang.srt.layers.attention.dsa_backend import DeepseekSparseAttnBackend

    class TorchSparseAttnBackend(DeepseekSparseAttnBackend):  # type: ignore[misc]
        """Stock metadata; attention gathers the selected rows and computes in float32."""

        def set_dsa_prefill_impl(self, forward_batch: Any) -> None:
            self.use_mha = False

        def _build_topk_v2_plan(self, *_: Any, **__: Any) -> None:
            return None

        def forward_extend(
            self,
            q: torch.Tensor,
            k: torch.Tensor | None,
            v: torch.Tensor | None,
            layer: Any,
            forward_batch: Any,
            save_kv_cache: bool = True,
            q_rope: torch.Tensor | None = None,
            k_rope: torch.Tensor | None = None,
            topk_indices: torch.Tensor | None = None,
            **_: Any,
        ) -> torch.Tensor:
            if k is not None and save_kv_cache:
                if state.settings.test_fault is not None:
                    k = shifted_rows("shift-mla", layer.layer_id, k)
                self.token_to_kv_pool.set_mla_kv_buffer(layer, forward_batch.out_cache_loc, k, k_rope)
            selected = self._pad_topk_indices(topk_indices, q.shape[0])
            heads, width = layer.tp_q_head_num, layer.head_dim
            if q_rope is not None:
                latent = q.reshape(-1, heads, layer.v_head_dim)
                q = torch.cat([latent, q_rope.reshape(-1, heads, width - layer.v_head_dim)], -1)
            rows = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
            out = attend(
                q.reshape(-1, heads, width), rows, selected, scale=layer.scaling, value_dim=layer.v_head_dim
            )
            return out.to(q.dtype).reshape(q.shape[0], -1)

        forward_decode = forward_extend

    return TorchSparseAttnBackend


def attend(
    q: torch.Tensor, rows: torch.Tensor, selected: torch.Tensor, *, scale: float, value_dim: int
) -> torch.Tensor:
    """Attention of q [tokens, heads, d] over the rows that `selected` [tokens, k] names (-1: none).

    `rows` is [slots, 1, d] and its first `value_dim` columns are the values. Rows that select nothing
    (padding) give 0. Returns float32 [tokens, heads, value_dim].
    """
    out = torch.zeros(q.shape[0], q.shape[1], value_dim)
    flat = rows.view(rows.shape[0], -1)
    for start in range(0, q.shape[0], _ROWS_AT_ONCE):
        piece = slice(start, start + _ROWS_AT_ONCE)
        slots = selected[piece].long()
        absent = slots < 0
        # What stands in for an absent slot is multiplied by a weight of 0, so it must be a number: the row's
        # first selection is (selections come before absent slots). A row without any is cleared at the end.
        slots = torch.where(absent, slots[:, :1], slots).clamp_min(0)
        kv = flat.index_select(0, slots.reshape(-1)).view(*slots.shape, -1).float()
        scores = torch.bmm(q[piece].float(), kv.transpose(1, 2)) * scale
        scores.masked_fill_(absent[:, None], float("-inf"))
        attended = torch.bmm(scores.softmax(-1), kv[..., :value_dim])
        out[piece] = attended.masked_fill_(absent.all(1)[:, None, None], 0.0)
    return out
