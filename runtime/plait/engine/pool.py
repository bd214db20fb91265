"""The engine's DSA pool: owned pages in, dense view out. Sizes, pointers and writes stay stock.

In the shared layout a rank allocates P/N + 1 physical pages and attention reads the dense scratch. In the
replicated layout (the reference of all comparisons) a rank stores every page under its logical id, and
reads its own pool: same split, same allocator, same batches, other storage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool

from plait.contract.capacity import GatherBy, scratch_for, set_aside
from plait.contract.layouts import PAGE_SIZE, Layout
from plait.contract.rows import index_row_bytes
from plait.contract.status import GatherPathName
from plait.engine import state
from plait.engine.gathering import Kind, PoolGather, segment_name
from plait.engine.install import IMPLEMENTATIONS, implements
from plait.engine.peers import PeerPools, device_of, map_pools, peers_can_map
from plait.gather import GatherPlan, GatherStats, Scratch, ScratchShape
from plait.gather.policy import Decision
from plait.peer import Segment

INDEX_HEAD_DIM = 128
"""The only one that the engine's DSA pool takes."""


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
        self.peers: PeerPools | None = None
        super().__init__(size, *args, index_buf_size=self._stored, **kwargs)
        self.index_buf_size = size
        self.scratch_tokens = scratch_tokens()
        if self.shared:
            self._make_gather()
        state.pool = self

    def _create_buffers(self) -> None:
        if self.shared and peers_can_map(device_of(self.device)):
            self._map_buffers()
            return
        logical, self.size = self.size, self._stored
        try:
            super()._create_buffers()
        finally:
            self.size = logical

    def _map_buffers(self) -> None:
        """Pools of both kinds in memory that the other ranks map. The index pool is made here too: one
        mapping, one rendezvous."""
        pages = self.physical_pages
        index_page = PAGE_SIZE * index_row_bytes(index_head_dim=INDEX_HEAD_DIM)
        mla_page = PAGE_SIZE * self.kv_cache_dim * self.store_dtype.itemsize
        per_page = {"mla": mla_page, "index": index_page}
        device = device_of(self.device)
        self.peers = state.peers = map_pools(
            [
                Segment(segment_name(kind, layer), pages * nbytes)
                for kind, nbytes in per_page.items()
                for layer in range(self.layer_num)
            ],
            unit_bytes=tuple(per_page.values()),
            device=device,
        )
        memory = self.peers.memory
        self.kv_buffer = [
            memory.own(segment_name("mla", layer)).view(self.store_dtype).view(-1, 1, self.kv_cache_dim)
            for layer in range(self.layer_num)
        ]
        self.index_k_with_scale_buffer = [
            memory.own(segment_name("index", layer)).view(pages, index_page)
            for layer in range(self.layer_num)
        ]

    def _create_index_buffers(self) -> None:
        if self.peers is None:
            super()._create_index_buffers()

    @property
    def physical_pages(self) -> int:
        """Pages of each of this rank's tensors, the reserved ones included."""
        return self._stored // PAGE_SIZE + 1

    def _make_gather(self) -> None:
        pages = self.scratch_tokens // PAGE_SIZE
        device = self.kv_buffer[0].device
        mla_page = (PAGE_SIZE, *self.kv_buffer[0].shape[1:])
        index_page = (1, *self.index_k_with_scale_buffer[0].shape[1:])
        self._mla_scratch = Scratch(ScratchShape(pages, mla_page, self.kv_buffer[0].dtype), device=device)
        self._index_scratch = Scratch(ScratchShape(pages, index_page, torch.uint8), device=device)
        self.gather = PoolGather(
            [
                Kind("index", self.index_k_with_scale_buffer, self._index_scratch),
                Kind("mla", self.kv_buffer, self._mla_scratch),
            ],
            physical_pages=self.physical_pages,
            peers=self.peers,
            top_k=index_top_k(),
        )

    @property
    def gather_stats(self) -> GatherStats:
        """Counters of the gather, since start (zeros in the replicated layout)."""
        return self.gather.stats if self.shared else GatherStats()

    @property
    def gather_batches(self) -> dict[GatherPathName, int]:
        """Batches by the way of their prefix, since start."""
        return dict(self.gather.batches) if self.shared else {}

    @property
    def scratch_bytes(self) -> int:
        """Bytes of the dense scratch, both kinds and slots (0 in the replicated layout)."""
        return self._mla_scratch.nbytes + self._index_scratch.nbytes if self.shared else 0

    def begin(self, plan: GatherPlan, *, rows: int) -> Decision:
        """Read through the view of `plan` from now on, in the way that is returned. rows: query rows of every
        rank, padding included."""
        if state.settings.debug_checks:
            self.gather.end()
            self._mla_scratch.poison()
            self._index_scratch.poison()
        return self.gather.begin(plan, rows=rows)

    # Reads of attention and indexer. Writes use `kv_buffer` and `get_index_k_with_scale_buffer`: own pages.

    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        if not self.shared:
            own: torch.Tensor = super().get_key_buffer(layer_id)
            return own
        rows = self.gather.consume("mla", layer_id - self.start_layer)
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
        return self.gather.consume("index", layer_id - self.start_layer)

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
        dense = _DenseIndex(self, {local: self.gather.consume("index", local)})
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


def index_top_k() -> int:
    """Rows that a query row attends to at most."""
    from sglang.srt.runtime_context import get_server_args

    return int(get_server_args().get_model_config().hf_config.index_topk)


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
    self.plait_layers = max(1, num_layers)
    self.plait_layer_bytes = size // self.plait_layers
    return -(-size // state.group().ranks)


@implements("model_executor.pool_configurator.DefaultPoolConfigurator.calculate_pool_sizes")
def pool_sizes(original: Callable[..., Any], self: Any, available_bytes: int, page_size: int) -> Any:
    """Set the two dense slots and the reserved pages aside, then count whole stripes."""
    stripe = page_size * state.group().ranks
    if state.settings.layout is Layout.SHARED:
        mapped = peers_can_map(device_of("cpu" if state.settings.cpu else "cuda"))
        available_bytes -= set_aside(
            scratch_tokens(),
            row=self.plait_layer_bytes,
            layers=self.plait_layers,
            ranks=state.group().ranks,
            by=GatherBy.PEER if mapped else GatherBy.COLLECTIVE,
        ).total
    reserved = self._cell_size * stripe
    if available_bytes < 2 * reserved:  # beside the reserved stripe, one to use
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
