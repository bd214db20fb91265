"""The one place where a forward learns of the layout: after the engine has built its attention metadata.

Writes: `out_cache_loc` becomes this rank's PHYSICAL slots, one for each padded row (padding goes to the
dummy slot 0), so every stock writer works unchanged. Reads: the page tables become slots of the dense view;
where attention reads the other ranks' rows in place, its table (`page_table_1`) becomes rows of what spans
all ranks, and the indexer's (`real_page_table`) stays the dense view's.

HAZARD: the engine's top-k v2 takes attention's slots from the indexer's table. It is for decode's shape (no
row starts), which no extend of the indexer has.
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
from plait.gather.peer_view import peer_table
from plait.gather.policy import Path
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
    decision = pool.begin(metadata.gather, rows=metadata.padded)
    dense = dense_tables(tables, metadata)
    if decision.prefix is not Path.DIRECT:
        return dense
    return in_place(tables, dense, pages_per_rank=pool.gather.pages_per_rank)


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


def in_place(logical: Any, dense: Any, *, pages_per_rank: int) -> Any:
    """`dense`, with attention's page table turned from the `logical` slots to rows of what spans all ranks.

    Raises RuntimeError where the two do not stand for the same requests.
    """
    slots = logical.page_table_1
    if slots.shape != dense.page_table_1.shape:
        raise RuntimeError(
            f"the engine made a page table of shape {tuple(slots.shape)} for a batch of which this rank has "
            f"{tuple(dense.page_table_1.shape)}"
        )
    rows = peer_table(slots, ranks=state.group().ranks, pages_per_rank=pages_per_rank)
    return dataclasses.replace(dense, page_table_1=rows)


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
