"""The one place where a forward learns of the layout: after the engine has built its attention metadata.

Writes: `out_cache_loc` becomes this rank's PHYSICAL slots, one for each padded row (padding goes to the
dummy slot 0), so every stock writer works unchanged. Reads: the page tables become slots of the dense view.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from plait.contract.layouts import PAGE_SIZE, Layout
from plait.engine import state
from plait.engine.index_path import flat_list, takes_flat_list, without_flat_list
from plait.engine.install import implements
from plait.engine.strategy import OwnerSplitMetadata
from plait.gather.upload import uploaded
from plait.layout import slot_owner, slot_physical


@implements("layers.attention.dsa_backend.DeepseekSparseAttnBackend.init_forward_metadata")
def init_forward_metadata(original: Callable[..., None], self: Any, forward_batch: Any) -> None:
    metadata = forward_batch.attn_cp_metadata
    if not isinstance(metadata, OwnerSplitMetadata):
        original(self, forward_batch)
        return
    with without_flat_list(forward_batch):
        original(self, forward_batch)
    if state.settings.layout is Layout.SHARED:
        self.forward_metadata = _shared(self.forward_metadata, forward_batch, metadata)
    if takes_flat_list(self, forward_batch):
        tables = self.forward_metadata
        flat = flat_list(tables.page_table_1, tables.indexer_seq_lens_cpu.numpy())
        self.forward_metadata = dataclasses.replace(tables, page_table_1_flattened=flat)


def _shared(tables: Any, forward_batch: Any, metadata: OwnerSplitMetadata) -> Any:
    """Turn writes and reads of a batch to own physical and to dense slots, and begin its dense view."""
    pool = state.pool
    if pool is None:
        raise RuntimeError("the engine built its KV pool without Plait's class")
    if not getattr(forward_batch, "plait_slots_are_physical", False):
        forward_batch.out_cache_loc = own_slots(forward_batch.out_cache_loc, metadata)
        forward_batch.plait_slots_are_physical = True
    dense = dense_tables(tables, metadata)
    pool.begin(metadata.gather, rows=metadata.padded)
    return dense


def own_slots(logical: torch.Tensor, metadata: OwnerSplitMetadata) -> torch.Tensor:
    """This rank's physical slots [padded rows] out of the batch's logical ones [tokens]."""
    here = state.group()
    mine = logical[metadata.own_tokens]
    if state.settings.debug_checks and bool((slot_owner(mine, here.ranks) != here.rank).any()):
        raise RuntimeError("a token was given to a rank that does not own its page")
    slots = logical.new_zeros(metadata.padded)
    slots[: len(mine)] = slot_physical(mine, here.ranks)
    return slots


def dense_tables(tables: Any, metadata: OwnerSplitMetadata) -> Any:
    """The attention metadata with its page tables turned to dense slots (same shapes and dtypes)."""
    here = state.group()
    chosen = np.flatnonzero(metadata.split.request_lengths[here.rank])
    wide = tables.page_table_1
    [first] = uploaded(metadata.gather.base[chosen] * PAGE_SIZE, device=wide.device)
    width = torch.arange(wide.shape[1], device=wide.device)
    slots = (first[:, None] + width[None]).to(wide.dtype)
    return dataclasses.replace(tables, page_table_1=slots, real_page_table=slots[:, ::PAGE_SIZE] // PAGE_SIZE)


@implements("layers.attention.dsa.dsa_indexer.Indexer._get_topk_ragged")
def exchange_index(
    self: Any, enable_dual_stream: bool, forward_batch: Any, layer_id: int, *args: Any, **kwargs: Any
) -> None:
    """Take part in the exchange of this layer's index pages, rows or no rows.

    The CUDA indexer of a rank without rows returns before it asks the pool, and the other ranks would wait
    for it in their collective. Every rank comes here after its own store; the pool's getter then finds the
    layer ready.
    """
    del self, enable_dual_stream, args, kwargs
    pool = state.pool
    if pool is not None and pool.shared and isinstance(forward_batch.attn_cp_metadata, OwnerSplitMetadata):
        pool.get_broadcastable_index_k_with_scale_buffer(layer_id)
