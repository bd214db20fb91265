"""The engine's DSA pool: owned pages in, dense view out. Sizes, pointers and writes stay stock.

In the shared layout a rank allocates P/N + 1 physical pages and attention reads the dense scratch. In the
replicated layout (the reference of all comparisons) a rank stores every page under its logical id, and
reads its own pool: same split, same allocator, same batches, other storage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool

from plait.contract.capacity import scratch_for
from plait.contract.layouts import PAGE_SIZE, Layout
from plait.engine import state
from plait.engine.install import IMPLEMENTATIONS, implements
from plait.gather import (
    CollectiveExchange,
    DenseView,
    GatherPlan,
    GatherStats,
    Scratch,
    ScratchShape,
    page_rows,
)


class OwnedPagePool(DSATokenToKVPool):  # type: ignore[misc]
    """Pool of one rank. `size` stays the logical number of tokens of the whole group."""

    size: int
    kv_buffer: list[torch.Tensor]
    index_k_with_scale_buffer: list[torch.Tensor]

    def __init__(self, size: int, *args: Any, **kwargs: Any) -> None:
        here = state.group()
        if size % (PAGE_SIZE * here.ranks):
            raise ValueError(
                f"max_total_num_tokens is {size}: it must be whole stripes of {here.ranks} ranks x "
                f"{PAGE_SIZE} tokens; use {size // (PAGE_SIZE * here.ranks) * PAGE_SIZE * here.ranks}"
            )
        self.rank, self.ranks = here
        self.shared = state.settings.layout is Layout.SHARED
        # Rows beside the stock pad page: the reserved stripe is one physical page when sharded, N when not.
        self._stored = size // self.ranks if self.shared else size + (self.ranks - 1) * PAGE_SIZE
        super().__init__(size, *args, index_buf_size=self._stored, **kwargs)
        self.index_buf_size = size
        self.gather_stats = GatherStats()
        self.scratch_tokens = scratch_tokens()
        if self.shared:
            self._make_views()
        state.pool = self

    def _create_buffers(self) -> None:
        logical, self.size = self.size, self._stored
        try:
            super()._create_buffers()
        finally:
            self.size = logical

    @property
    def physical_pages(self) -> int:
        """Pages of each of this rank's tensors, the reserved ones included."""
        return self._stored // PAGE_SIZE + 1

    def _make_views(self) -> None:
        pages = self.scratch_tokens // PAGE_SIZE
        device = self.kv_buffer[0].device
        mla_page = (PAGE_SIZE, *self.kv_buffer[0].shape[1:])
        index_page = (1, *self.index_k_with_scale_buffer[0].shape[1:])
        self._mla_scratch = Scratch(ScratchShape(pages, mla_page, self.kv_buffer[0].dtype), device=device)
        self._index_scratch = Scratch(ScratchShape(pages, index_page, torch.uint8), device=device)
        self.mla_view = self._view(self.kv_buffer, self._mla_scratch)
        self.index_view = self._view(self.index_k_with_scale_buffer, self._index_scratch)

    def _view(self, buffers: list[torch.Tensor], scratch: Scratch) -> DenseView:
        # One group per kind and use: within a group the order of collectives is the order of layers.
        return DenseView(
            [page_rows(buffer, self.physical_pages) for buffer in buffers],
            scratch,
            ahead=CollectiveExchange(_new_group()),
            now=CollectiveExchange(_new_group()),
            prefetch=state.settings.prefetch,
            stats=self.gather_stats,
        )

    @property
    def scratch_bytes(self) -> int:
        """Bytes of the dense scratch, both kinds and slots (0 in the replicated layout)."""
        return self._mla_scratch.nbytes + self._index_scratch.nbytes if self.shared else 0

    def begin(self, plan: GatherPlan) -> None:
        """Read through the dense view of `plan` from now on."""
        if state.settings.debug_checks:
            self.mla_view.end()
            self.index_view.end()
            self._mla_scratch.poison()
            self._index_scratch.poison()
        device = self.kv_buffer[0].device
        self.index_view.begin(plan, rank=self.rank, device=device)
        self.mla_view.begin(plan, rank=self.rank, device=device)

    # Reads of attention and indexer. Writes use `kv_buffer` and `get_index_k_with_scale_buffer`: own pages.

    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        if not self.shared:
            own: torch.Tensor = super().get_key_buffer(layer_id)
            return own
        rows = self.mla_view.consume(layer_id - self.start_layer)
        return rows.view(self.dtype) if self.store_dtype != self.dtype else rows

    def get_value_buffer(self, layer_id: int) -> torch.Tensor:
        if not self.shared:
            own: torch.Tensor = super().get_value_buffer(layer_id)
            return own
        return self.get_key_buffer(layer_id)[..., : self.kv_lora_rank]

    def get_broadcastable_index_k_with_scale_buffer(self, layer_id: int) -> torch.Tensor:
        """What the indexer reads, uint8 [dense pages, page bytes]."""
        if not self.shared:
            own: torch.Tensor = super().get_index_k_with_scale_buffer(layer_id)
            return own
        return self.index_view.consume(layer_id - self.start_layer)

    def get_index_k_continuous(self, layer_id: int, *args: Any, **kwargs: Any) -> Any:
        return self._dense_index(super().get_index_k_continuous, layer_id, *args, **kwargs)

    def get_index_k_scale_continuous(self, layer_id: int, *args: Any, **kwargs: Any) -> Any:
        return self._dense_index(super().get_index_k_scale_continuous, layer_id, *args, **kwargs)

    def get_index_k_scale_buffer(self, layer_id: int, *args: Any, **kwargs: Any) -> Any:
        return self._dense_index(super().get_index_k_scale_buffer, layer_id, *args, **kwargs)

    def _dense_index(self, read: Any, layer_id: int, *args: Any, **kwargs: Any) -> Any:
        """A stock accessor (bound method `read`), made to read the dense tensor of its layer."""
        if not self.shared:
            return read(layer_id, *args, **kwargs)
        local = layer_id - self.start_layer
        dense = _DenseIndex(self, {local: self.index_view.consume(local)})
        return read.__func__(dense, layer_id, *args, **kwargs)

    def move_kv_cache(self, tgt_loc: torch.Tensor, src_loc: torch.Tensor) -> None:
        raise NotImplementedError(
            "the shared layout does not move cached tokens (speculative decoding is off)"
        )

    def get_cpu_copy(self, indices: torch.Tensor, mamba_indices: Any = None) -> Any:
        raise NotImplementedError("the shared layout does not offload requests to the host")

    def load_cpu_copy(self, kv_cache_cpu: Any, indices: torch.Tensor, mamba_indices: Any = None) -> None:
        raise NotImplementedError("the shared layout does not offload requests to the host")


class _DenseIndex:
    """A pool as stock accessors see it, with dense tensors (by local layer) for its own index pages.

    Not a change of the pool itself: transfers and the status thread read its own tensors at any time.
    """

    def __init__(self, pool: OwnedPagePool, dense: dict[int, torch.Tensor]) -> None:
        self._pool = pool
        self.index_k_with_scale_buffer = dense

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)


def _new_group() -> dist.ProcessGroup:
    """A process group of this CP group's ranks. Every rank makes the same ones in the same order."""
    from sglang.srt.runtime_context import get_parallel

    ranks = list(get_parallel().attn_cp_group.ranks)
    group: dist.ProcessGroup = dist.new_group(ranks, backend="gloo" if state.settings.cpu else "nccl")
    # NCCL sets its buffers up at the first collective: better now than in the first request.
    dist.all_reduce(torch.zeros(1, device="cpu" if state.settings.cpu else "cuda"), group=group)
    return group


def scratch_tokens() -> int:
    """Tokens that one dense slot holds: PLAIT_SCRATCH_TOKENS, or the longest request and a chunk."""
    from sglang.srt.runtime_context import get_server_args

    arguments = get_server_args()
    longest = arguments.get_model_config().context_len
    needed = -(-longest // PAGE_SIZE) * PAGE_SIZE
    chosen = state.settings.scratch_tokens or scratch_for(
        context_length=longest, chunk=arguments.chunked_prefill_size
    )
    if chosen < needed:
        from plait.engine.entry import stop

        stop(
            f"PLAIT_SCRATCH_TOKENS = {chosen}: one request may have {longest} tokens (--context-length), and "
            f"must always fit the dense scratch. Fix: PLAIT_SCRATCH_TOKENS={needed} or more, or a smaller "
            "--context-length"
        )
    return chosen


IMPLEMENTATIONS["sglang.srt.mem_cache.kv_cache_configurator.DSATokenToKVPool"] = OwnedPagePool


@implements("model_executor.pool_configurator.DefaultPoolConfigurator._compute_cell_size")
def cell_size(original: Callable[..., int], self: Any, kvc: Any, num_layers: int) -> int:
    """Bytes that one logical token costs this rank. Stays whole: rounding up keeps the pool in its budget."""
    size = original(self, kvc, num_layers)
    if state.settings.layout is not Layout.SHARED:
        return size
    self.plait_layer_bytes = size // max(1, num_layers)
    return -(-size // state.group().ranks)


@implements("model_executor.pool_configurator.DefaultPoolConfigurator.calculate_pool_sizes")
def pool_sizes(original: Callable[..., Any], self: Any, available_bytes: int, page_size: int) -> Any:
    """Set the two dense slots and the reserved pages aside, then count whole stripes."""
    stripe = page_size * state.group().ranks
    if state.settings.layout is Layout.SHARED:
        # Beside the two dense slots an exchange has its own buffers: what it receives (a slot at most, for
        # prefix and chunk together) and what it packs (this rank's share of one).
        slot = (scratch_tokens() + page_size) * self.plait_layer_bytes
        available_bytes -= 3 * slot + -(-slot // state.group().ranks)
    reserved = self._cell_size * stripe
    if available_bytes <= reserved:
        raise RuntimeError(
            f"no memory is left for the KV pool beside the dense scratch of {scratch_tokens()} tokens; lower "
            "PLAIT_SCRATCH_TOKENS or --context-length, or raise --mem-fraction-static"
        )
    return original(self, available_bytes - reserved, stripe)


@implements("model_executor.pool_configurator.DefaultPoolConfigurator.calculate_pool_sizes_from_max_tokens")
def pool_sizes_from_tokens(
    original: Callable[..., Any], self: Any, max_total_num_tokens: int, page_size: int
) -> Any:
    """`--max-total-tokens`, rounded down to whole stripes."""
    return original(self, max_total_num_tokens, page_size * state.group().ranks)
