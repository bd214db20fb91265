"""What the index path and the sparse kernels of a CUDA engine need beside the page tables.

Two things that stock decides in a way that owners, or ranks without rows, break:

- `flashmla_sparse` on an FP8 cache (RAGGED top-k) attends over a flat list of slots, not over a page table.
  Stock makes the list only for batches with a cached prefix, in which a rank without rows dies (it joins no
  tensors); without one it attends over the chunk as it was handed to the store. That is this rank's own rows
  (shared), or every request's where the indices count only the requests that this rank has rows of
  (replicated). So the list is made here, for every batch and rank, and the kernel always takes it: it reads
  the pool, or the dense view.
- Index logits are rows x keys x 4 bytes. Stock cuts them by the memory that a rank happens to have free when
  it first asks the device (which waits). Here the rows at once follow from the start arguments and the
  batch alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from plait.contract.layouts import PAGE_SIZE
from plait.engine.install import implements
from plait.gather.upload import uploaded
from plait.layout import Int64Array

MOST_ROWS = 65_535
"""Rows of one launch: the limit of a CUDA grid's second and third dimension."""
LOGIT_BYTES = 4
_TABLE_BYTES = 4
_GIB = 1 << 30
_PREFIXED = (1,)
"""Stands in for a batch's prefix lengths: any that is not 0 makes stock take the flat list."""


# --- the flat list of slots --------------------------------------------------------------------------


@contextmanager
def without_flat_list(forward_batch: Any) -> Iterator[None]:
    """While stock builds its metadata, no request has a prefix: it makes no flat list of its own.

    Nothing else that it builds for a split batch depends on prefix lengths (the split has told it the
    requests, and all lengths are those of whole sequences).
    """
    held = forward_batch.extend_prefix_lens_cpu
    forward_batch.extend_prefix_lens_cpu = [0] * len(held)
    try:
        yield
    finally:
        forward_batch.extend_prefix_lens_cpu = held


def takes_flat_list(backend: Any, forward_batch: Any) -> bool:
    """Whether the attention of this batch indexes a flat list (RAGGED) and not the page table."""
    from sglang.srt.layers.attention.dsa.dsa_topk_backend import TopkTransformMethod

    found: bool = backend.get_topk_transform_method(forward_batch.forward_mode) == TopkTransformMethod.RAGGED
    return found


def flat_list(table: torch.Tensor, lengths: Int64Array) -> torch.Tensor:
    """The first `lengths[i]` slots of each row of `table` [requests, width], one after the other.

    lengths: np.int64 [requests], on the host. Same dtype and device as `table`. For a rank that has no
    request it is one page of slots: kernels must be given some rows, and its padded queries select none.
    """
    if not len(lengths):
        return torch.arange(PAGE_SIZE, dtype=table.dtype, device=table.device)
    total = int(lengths.sum())
    shift = np.arange(len(lengths)) * table.shape[1] - (np.cumsum(lengths) - lengths)
    shifts, counts = uploaded(shift, lengths, device=table.device)
    # With its size known, the repetition does not wait for the counts.
    where = torch.repeat_interleave(shifts, counts, output_size=total)
    return table.reshape(-1)[where + torch.arange(total, device=table.device)]


@implements("layers.attention.dsa_backend.DeepseekSparseAttnBackend.forward_extend")
def attend_over_flat_list(
    original: Callable[..., Any],
    self: Any,
    q: Any,
    k: Any,
    v: Any,
    layer: Any,
    forward_batch: Any,
    *rest: Any,
    **kwargs: Any,
) -> Any:
    """With a flat list at hand, take it, prefix or no prefix."""
    if self.forward_metadata.page_table_1_flattened is None or forward_batch.attn_cp_metadata is None:
        return original(self, q, k, v, layer, forward_batch, *rest, **kwargs)
    held = forward_batch.extend_prefix_lens_cpu
    forward_batch.extend_prefix_lens_cpu = _PREFIXED
    try:
        return original(self, q, k, v, layer, forward_batch, *rest, **kwargs)
    finally:
        forward_batch.extend_prefix_lens_cpu = held


# --- rows of index logits at once --------------------------------------------------------------------


def rows_at_once(rows: int, keys: int, *, budget: int, paged: bool) -> int:
    """Query rows of one launch of index logits against `keys` keys: all `rows`, or equal parts of them.

    budget: bytes that logits may take. In parts, a paged top-k is given the page table of every row
    (`paged`), as wide as its logits. At least 1, however small the budget: a row cannot be cut.
    """
    if rows <= MOST_ROWS and rows * keys * LOGIT_BYTES <= budget:
        return rows
    width = LOGIT_BYTES + (_TABLE_BYTES if paged else 0)
    most = max(1, min(MOST_ROWS, budget // (keys * width)))
    return -(-rows // -(-rows // most))


@functools.cache
def logits_budget(device: int) -> int:
    """Bytes for index logits on `device`: a part of what the static memory leaves free. Asks no device for
    its free memory. GPUs of one model differ by less than the GiB that totals are rounded down to."""
    from sglang.srt.environ import envs
    from sglang.srt.runtime_context import get_schedule

    total = torch.cuda.get_device_properties(device).total_memory // _GIB * _GIB
    static = get_schedule().mem_fraction_static or 0.0
    return budget_of(total, static=static, part=envs.SGLANG_DSA_MQA_LOGITS_FREE_MEM_FRACTION.get())


def budget_of(total: int, *, static: float, part: float) -> int:
    """`part` of the memory beyond the fraction `static` of `total` bytes, at most 3 tenths of the total."""
    return max(1, min(int(total * max(0.0, 1.0 - static) * part), int(total * 0.3)))


@implements("layers.attention.dsa.dsa_indexer.Indexer._should_chunk_mqa_logits")
def should_chunk_logits(self: Any, num_q: int, num_k: int, device_index: int) -> tuple[bool, int]:
    """(in parts?, bytes of a part's logits): the engine divides them by the bytes of a row again."""
    from sglang.srt.layers.attention.dsa.dsa_topk_backend import TopkTransformMethod
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.model_executor.forward_context import get_attn_backend

    del self
    ragged = get_attn_backend().get_topk_transform_method(ForwardMode.EXTEND) == TopkTransformMethod.RAGGED
    rows = rows_at_once(num_q, num_k, budget=logits_budget(device_index), paged=not ragged)
    return rows < num_q, rows * num_k * LOGIT_BYTES
