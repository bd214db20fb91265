"""The narrow tail: at the end of a prefill only each request's last row is collected, not every token's.

Sampling reads one row of hidden states per request. Stock gathers the rows of all tokens of the batch from
all ranks and then picks those (8K tokens of 6144 bf16: 100 MB). Here each rank gives the last rows that it
computed, [most that any rank has, hidden], and every rank puts them in the order of the requests.

Stock's gather stays where rows of other tokens are asked for: logprobs of the prompt, hidden states, drafts,
scoring. What decides is the batch and the start arguments alone, which are equal on all ranks.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from plait.engine import state
from plait.engine.install import implements
from plait.engine.strategy import OwnerSplitMetadata
from plait.gather.upload import uploaded
from plait.layout import Int64Array, SplitPlan


class TailPlan(NamedTuple):
    """Where the last rows of a batch's requests are.

    rows: np.int64 [N, block]: local rows that each rank gives, in request order (padding: row 0, which every
        rank has, if only as a padded row). place: np.int64 [batch]: row of each request among the N * block
        collected ones. Padding is never placed.
    """

    rows: Int64Array
    place: Int64Array

    @property
    def block(self) -> int:
        """Rows that every rank gives: the most last tokens that any rank computes."""
        return int(self.rows.shape[1])

    @classmethod
    def from_split(cls, split: SplitPlan) -> TailPlan:
        """The plan for a batch that is split so."""
        extends = split.request_lengths.sum(axis=0)
        last_rows = split.local_row[np.cumsum(extends) - 1]
        owners = split.last_owner
        owned = np.bincount(owners, minlength=split.ranks)
        order = np.argsort(owners, kind="stable")
        column = np.empty(len(owners), dtype=np.int64)
        column[order] = np.arange(len(owners)) - np.repeat(np.cumsum(owned) - owned, owned)
        rows = np.zeros((split.ranks, int(owned.max())), dtype=np.int64)
        rows[owners, column] = last_rows
        return cls(rows=rows, place=owners * rows.shape[1] + column)


class Tail:
    """A batch's `TailPlan` on this rank's device. `collected`: the rows at hand are the last ones alone."""

    def __init__(self, plan: TailPlan, *, rank: int, device: torch.device) -> None:
        self.plan = plan
        self.collected = False
        self.rows, self.place = uploaded(plan.rows[rank], plan.place, device=device)

    def collect(self, local: torch.Tensor) -> torch.Tensor:
        """Last rows of all requests, [batch, ...], out of this rank's `local` rows [padded, ...].

        A collective: every rank calls it, with last rows or without.
        """
        from sglang.srt.layers.dp_attention import attn_cp_all_gather_into_tensor

        own = local.index_select(0, self.rows)
        every = local.new_empty((self.plan.rows.size, *local.shape[1:]))
        attn_cp_all_gather_into_tensor(every, own)
        return every.index_select(0, self.place)


def last_rows_suffice(runner: Any, forward_batch: Any) -> bool:
    """Whether nothing but the last row of each request will be read. Equal on all ranks."""
    model = runner.model
    return (
        state.settings.narrow_tail
        and isinstance(forward_batch.attn_cp_metadata, OwnerSplitMetadata)
        and runner.is_generation
        and not runner.is_draft_worker
        and not getattr(model, "capture_aux_hidden_states", False)
        and not model.logits_processor.return_full_logits
        and (forward_batch.spec_algorithm is None or forward_batch.spec_algorithm.is_none())
        and forward_batch.spec_info is None
        and not forward_batch.capture_hidden_mode.need_capture()
        and forward_batch.multi_item_delimiter_indices is None
        and not _reads_prompt(forward_batch)
    )


def _reads_prompt(forward_batch: Any) -> bool:
    """Whether logprobs of prompt tokens are asked for. A start at the chunk's end asks for none."""
    if not forward_batch.return_logprob:
        return False
    starts = forward_batch.extend_logprob_start_lens_cpu
    return any(
        start < length for start, length in zip(starts, forward_batch.extend_seq_lens_cpu, strict=True)
    )


# --- hooks: decide, collect, and tell the logits what they are given ---------------------------------


@implements("model_executor.runner.eager_runner.EagerRunner._execute_extend_cp_v2")
def choose_tail(original: Callable[..., Any], self: Any, forward_batch: Any, kwargs: dict[str, Any]) -> Any:
    narrow = last_rows_suffice(self.model_runner, forward_batch)
    metadata = forward_batch.attn_cp_metadata
    if narrow:
        metadata.tail = Tail(
            TailPlan.from_split(metadata.split),
            rank=state.group().rank,
            device=forward_batch.seq_lens.device,
        )
    if state.settings.debug_checks:
        _record(forward_batch, narrow=narrow)
    return original(self, forward_batch, kwargs)


@implements("layers.cp.utils.cp_gather_after_forward")
def gather_after_forward(
    original: Callable[..., Any], x: Any, forward_batch: Any, stream: Any | None = None
) -> Any:
    """[batch, hidden] where the last rows suffice, else all tokens' as stock."""
    metadata = forward_batch.attn_cp_metadata
    tail: Tail | None = metadata.tail if isinstance(metadata, OwnerSplitMetadata) else None
    if tail is None or not isinstance(x, torch.Tensor):
        return original(x, forward_batch, stream)
    if tail.collected:
        raise RuntimeError("the last rows of a batch were collected twice")
    last = tail.collect(x)
    tail.collected = True
    if state.settings.debug_checks:
        _compare(last, original(x, forward_batch, stream), forward_batch)
    return last


@implements("layers.logits_processor.LogitsProcessor.forward")
def logits_of_last_rows(
    original: Callable[..., Any],
    self: Any,
    input_ids: Any,
    hidden_states: torch.Tensor,
    lm_head: Any,
    logits_metadata: Any,
    *rest: Any,
    **kwargs: Any,
) -> Any:
    """Given last rows alone, the logits are those of a batch in which every request has one token."""
    metadata = getattr(logits_metadata, "attn_cp_metadata", None)
    tail = metadata.tail if isinstance(metadata, OwnerSplitMetadata) else None
    if tail is not None and tail.collected:
        from sglang.srt.layers.logits_processor import LogitsMetadata

        if hidden_states.shape[0] != len(tail.plan.place):
            raise RuntimeError(
                f"{hidden_states.shape[0]} rows for the logits of {len(tail.plan.place)} requests: the last "
                "rows were collected, but others are here"
            )
        logits_metadata = LogitsMetadata.from_forward_batch(logits_metadata)
        logits_metadata.extend_seq_lens = torch.ones_like(logits_metadata.extend_seq_lens)
        logits_metadata.extend_seq_lens_cpu = [1] * len(tail.plan.place)
    return original(self, input_ids, hidden_states, lm_head, logits_metadata, *rest, **kwargs)


# --- PLAIT_DEBUG_CHECKS ------------------------------------------------------------------------------


def _compare(last: torch.Tensor, every: torch.Tensor, forward_batch: Any) -> None:
    """Stop unless the collected rows are those of stock's gather, to the last bit."""
    expected = every[torch.cumsum(forward_batch.extend_seq_lens, dim=0) - 1]
    if not torch.equal(last.view(torch.uint8), expected.view(torch.uint8)):
        raise RuntimeError("the narrow tail collected other rows than the full gather")


def _record(forward_batch: Any, *, narrow: bool) -> None:
    """Append to `forwards.jsonl` in the state folder (rank 0): which tail this batch is given, and of how
    many requests page ids were known on the host, and were not, since start."""
    folder = state.settings.state_dir
    if folder is None or state.group().rank != 0:
        return
    known = state.allocator.host_pages if state.allocator is not None else None
    told = {
        "narrow": narrow,
        "extend": list(forward_batch.extend_seq_lens_cpu),
        "host_pages": [known.hits, known.misses] if known is not None else [0, 0],
    }
    with (folder / "forwards.jsonl").open("a") as file:
        file.write(json.dumps(told) + "\n")
