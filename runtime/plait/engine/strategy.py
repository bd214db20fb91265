"""The context-parallel strategy in which page ownership decides who computes what.

Installed over the engine's `interleave` (CP-v2). Ranks with zero rows are normal: padded rows carry them
through every collective, so there is no second code path and no fallback.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sglang.srt.layers.cp import base
from sglang.srt.layers.cp.interleave import InterleaveContextParallelMetadata, InterleaveCPStrategy
from sglang.srt.layers.cp.padding import pad_local_rows
from sglang.srt.layers.dp_attention import attn_cp_all_gather_into_tensor

from plait.contract.layouts import PAGE_SIZE, Layout
from plait.engine import debug, faults, state
from plait.engine.install import implements
from plait.gather import GatherPlan, GatherRequest
from plait.gather.upload import uploaded
from plait.layout import Int64Array, SplitPlan, SplitRequest
from plait.layout.pages import listed

if TYPE_CHECKING:
    from plait.engine.tail import Tail


@dataclass
class OwnerSplitMetadata(InterleaveContextParallelMetadata):  # type: ignore[misc]
    """A batch's split and dense view, and this rank's index tensors on its device."""

    split: SplitPlan = None  # type: ignore[assignment]
    gather: GatherPlan = None  # type: ignore[assignment]
    own_tokens: torch.Tensor = None  # type: ignore[assignment]
    """int64 [own rows]: flat indices of the tokens that this rank computes."""
    restore: torch.Tensor | None = None
    """int64 [tokens]: row of each token in the gathered padded rows; made when first needed."""
    tail: Tail | None = None
    """Set where only each request's last row is collected after the layers."""

    @property
    def padded(self) -> int:
        """Rows of every rank after the engine's padding."""
        rows: int = self.per_rank_actual_token[0]
        return rows


class OwnerSplitStrategy(InterleaveCPStrategy):  # type: ignore[misc]
    """Splits a batch by who owns its pages. Keeps the name `interleave`: the engine asks for it by name."""

    def __init__(self, cp_size: int) -> None:
        super().__init__(cp_size)
        self.stats = SplitStats()
        # The engine passes no batch to `build_metadata`, `shard_local_tokens` and `shard_per_request`, but
        # calls `can_apply` right before each of them.
        self._batch: Any = None

    def can_apply(self, num_tokens: int, forward_batch: Any) -> bool:
        if not forward_batch.forward_mode.is_context_parallel_extend():
            return False
        if self.cp_size <= 1 or sum(forward_batch.extend_seq_lens_cpu) == 0:
            return False
        self._batch = forward_batch
        return True

    def build_metadata(
        self,
        num_tokens: int,
        seqs_len: list[int] | None,
        extend_seqs_len: list[int] | None = None,
    ) -> OwnerSplitMetadata:
        if seqs_len is None or extend_seqs_len is None:
            raise ValueError("a context-parallel batch needs its sequence and extend lengths on the host")
        pages = sequence_pages(self._batch, seqs_len)
        prefixes = [length - extend for length, extend in zip(seqs_len, extend_seqs_len, strict=True)]
        split = SplitPlan.from_pages(
            [SplitRequest(*one) for one in zip(prefixes, extend_seqs_len, pages, strict=True)],
            ranks=self.cp_size,
        )
        if split.tokens != num_tokens:
            raise ValueError(f"the batch has {num_tokens} tokens, its requests together {split.tokens}")
        if state.settings.test_fault is not None:
            pages = [faults.swapped_owners(one) for one in pages]
        gather = GatherPlan.from_requests(
            [GatherRequest(*one) for one in zip(prefixes, extend_seqs_len, pages, strict=True)],
            ranks=self.cp_size,
            budget=state.pool.scratch_tokens // PAGE_SIZE if state.pool is not None else 0,
        )
        self.stats.count(split)
        if state.settings.debug_checks:
            debug.record_batch(prefixes, list(extend_seqs_len), split)
        lengths = split.lengths.tolist()
        return OwnerSplitMetadata(
            per_rank_actual_token=lengths,
            max_rank_len=[max(lengths)] * self.cp_size,
            total_seq_lens=split.tokens,
            bs=len(extend_seqs_len),
            split=split,
            gather=gather,
            own_tokens=uploaded(split.token_index[self.cp_rank], device=self._batch.seq_lens.device)[0],
        )

    def shard_hidden_states(self, x: torch.Tensor, forward_batch: Any) -> torch.Tensor:
        metadata = forward_batch.attn_cp_metadata
        padded: torch.Tensor = pad_local_rows(x[metadata.own_tokens], metadata, dim=0)
        return padded

    def shard_position_ids(self, positions: torch.Tensor, forward_batch: Any) -> torch.Tensor:
        return self.shard_hidden_states(positions, forward_batch)

    def shard_local_tokens(self, input_: Any) -> Any:
        metadata = self._batch.attn_cp_metadata
        if isinstance(input_, torch.Tensor):
            return input_[metadata.own_tokens]
        return [input_[i] for i in metadata.split.token_index[self.cp_rank].tolist()]

    def shard_per_request(
        self, extend_seqs_cpu: list[int], extend_seqs: torch.Tensor
    ) -> tuple[list[int], torch.Tensor, list[int], torch.Tensor]:
        """Own tokens per request and the requests that have any, on host and device."""
        lengths = self._batch.attn_cp_metadata.split.request_lengths[self.cp_rank]
        chosen = np.flatnonzero(lengths)
        counts, indices = uploaded(lengths[chosen], chosen, device=extend_seqs.device)
        return (
            lengths[chosen].tolist(),
            counts.to(extend_seqs.dtype),
            chosen.tolist(),
            indices.to(torch.int32),
        )

    def _gather_interleaved_tensor(self, x: torch.Tensor, forward_batch: Any) -> torch.Tensor:
        """All ranks' rows back in token order, [tokens, ...]. Every rank calls it, with rows or without."""
        metadata: OwnerSplitMetadata = forward_batch.attn_cp_metadata
        padded, own = metadata.padded, len(metadata.own_tokens)
        rows = x.new_zeros((padded, *x.shape[1:]))
        rows[:own] = x[:own]
        gathered = x.new_empty((self.cp_size * padded, *x.shape[1:]))
        attn_cp_all_gather_into_tensor(gathered, rows)
        if metadata.restore is None:
            [metadata.restore] = uploaded(metadata.split.gather_index(padded), device=x.device)
        return gathered.index_select(0, metadata.restore)

    # Shared: a rank writes its own rows only, so nothing is gathered before the write. The padded rows go
    # along; their slot is the dummy row.

    def materialize_full_mla_kv(
        self, forward_batch: Any, layer: Any, k_nope: torch.Tensor, k_rope: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if state.settings.layout is Layout.SHARED:
            return k_nope, k_rope
        latent = k_nope.shape[-1]
        full = self._gather_interleaved_tensor(torch.cat([k_nope, k_rope], dim=-1), forward_batch)
        return full[..., :latent], full[..., latent:]

    def materialize_full_indexer_k_cache(self, key: torch.Tensor, forward_batch: Any) -> torch.Tensor:
        if state.settings.layout is Layout.SHARED:
            return key
        return self._gather_interleaved_tensor(key, forward_batch)


class SplitStats:
    """Load balance of this group's forwards, since start."""

    def __init__(self) -> None:
        self.forwards = self.tokens = self.max_tokens = 0
        self.mean_tokens = 0.0

    def count(self, split: SplitPlan) -> None:
        """Add one batch: the rank with most rows sets its pace."""
        self.forwards += 1
        self.tokens += split.tokens
        self.max_tokens += split.max_length
        self.mean_tokens += split.tokens / split.ranks


def sequence_pages(forward_batch: Any, seq_lens: list[int]) -> list[Int64Array]:
    """Logical page ids of each request's whole sequence, np.int64 [ceil(length / 64)].

    From what the host knows; if it does not know a request's, from the request table on the device (one copy,
    for which the host waits). Both are equal on all ranks.
    """
    known = state.allocator.host_pages.of_batch(forward_batch.rids, seq_lens) if state.allocator else None
    if known is None:
        return _device_pages(forward_batch, seq_lens)
    if state.settings.debug_checks:
        for index, (ours, there) in enumerate(
            zip(known, _device_pages(forward_batch, seq_lens), strict=True)
        ):
            if not np.array_equal(ours, there):
                raise RuntimeError(
                    f"request {index}: the host takes its pages for {listed(ours)}, the request table has "
                    f"{listed(there)}"
                )
    return known


def _device_pages(forward_batch: Any, seq_lens: list[int]) -> list[Int64Array]:
    from sglang.srt.model_executor.forward_context import get_req_to_token_pool

    table = get_req_to_token_pool().req_to_token
    longest = max(seq_lens)
    first_slots = table[forward_batch.req_pool_indices.long(), :longest:PAGE_SIZE]
    pages = first_slots.cpu().numpy().astype(np.int64) // PAGE_SIZE
    return [row[: -(-length // PAGE_SIZE)] for row, length in zip(pages, seq_lens, strict=True)]


@implements("layers.cp.base.init_cp_strategy")
def install_strategy(result: None, server_args: Any) -> None:
    """Put the owner split where the engine has just put `interleave`."""
    del result
    current = base._STRATEGY
    if current is None or isinstance(current, OwnerSplitStrategy):
        return
    if current.name != "interleave":
        raise ValueError(
            f"cp_strategy is {current.name!r}: the owner split is installed over 'interleave' "
            "(--cp-strategy interleave)"
        )
    state.strategy = OwnerSplitStrategy(current.cp_size)
    base._STRATEGY = state.strategy


@implements("layers.attention.dsa.utils.can_dsa_prefill_cp_round_robin_split")
def can_split(forward_batch: Any) -> bool:
    """Any batch with a token, also one with fewer tokens than ranks (the stock gate repeats that test)."""
    from sglang.srt.layers.attention.dsa.utils import is_dsa_prefill_cp_round_robin_split

    return bool(
        forward_batch.forward_mode.is_context_parallel_extend()
        and state.group().ranks > 1
        and is_dsa_prefill_cp_round_robin_split()
        and sum(forward_batch.extend_seq_lens_cpu) > 0
    )
