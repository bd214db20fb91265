"""What PLAIT_DEBUG_CHECKS records, for tests and for the search of a wrong token. Not installed otherwise.

In the rank's state folder: `batches.jsonl`, the composition of every formed batch (rank 0), and
`pages-<role>-<rank>-<room>.json`, digests of a request's pages as prefill had them and as decode got them.
While a file `hold` lies there, nothing new is begun: requests that shall share a batch gather in the queue
(`held.json` tells how many are there).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from plait.contract.layouts import PAGE_SIZE
from plait.engine import state
from plait.engine.install import implements
from plait.layout import Int64Array, SplitPlan, owner, physical


def record_batch(prefixes: list[int], extends: list[int], split: SplitPlan) -> None:
    """Append one formed batch: lengths of each request, rows of each rank, and the owner of each token."""
    folder = state.settings.state_dir
    if folder is None or state.group().rank != 0:
        return
    told = {
        "prefix": prefixes,
        "extend": extends,
        "rows": split.lengths.tolist(),
        "owners": split.token_owner.tolist(),
    }
    with (folder / "batches.jsonl").open("a") as file:
        file.write(json.dumps(told) + "\n")


@implements("managers.scheduler.Scheduler.get_new_batch_prefill")
def hold_batches(original: Callable[..., Any], self: Any, running_batch: Any) -> Any:
    """Form no batch while any rank sees the file `hold`.

    The ranks agree first: a file that vanishes between two of them would make them form different batches.
    """
    folder = state.settings.state_dir
    if folder is None or self.disaggregation_mode.value != "prefill":
        return original(self, running_batch)
    seen = torch.tensor([(folder / "hold").exists()], dtype=torch.uint8)
    dist.all_reduce(seen, op=dist.ReduceOp.MAX, group=self.attn_cp_cpu_group)
    if not seen.tolist()[0]:
        return original(self, running_batch)
    from sglang.srt.managers.scheduler import NextBatchPlan

    _tell_held(self, folder)
    return NextBatchPlan(batch_to_run=None, running_batch=running_batch)


@implements("disaggregation.decode.SchedulerDisaggregationDecodeMixin.get_new_prebuilt_batch")
def hold_decode(original: Callable[..., Any], self: Any, running_batch: Any) -> Any:
    """Start to decode nothing new while the file `hold` is there (decode is one rank)."""
    folder = state.settings.state_dir
    if folder is None or not (folder / "hold").exists():
        return original(self, running_batch)
    _tell_held(self, folder)
    return None


def _tell_held(scheduler: Any, folder: Path) -> None:
    """Tell how many requests wait, in an order that does not depend on which came first."""
    scheduler.waiting_queue.sort(key=lambda req: str(req.rid))
    if state.group().rank == 0:
        (folder / "held.json").write_text(json.dumps(len(scheduler.waiting_queue)))


@implements("disaggregation.prefill.SchedulerDisaggregationPrefillMixin.send_kv_chunk")
def record_sent_pages(
    result: None, self: Any, req: Any, last_chunk: bool = False, end_idx: int | None = None
) -> None:
    """After the last chunk was handed over: digests of the request's pages that this rank holds."""
    del result, end_idx
    if last_chunk:
        _record(self, req, role="prefill", tokens=len(req.origin_input_ids))


@implements("disaggregation.decode.DecodeTransferQueue._commit_transfer_to_req")
def record_received_pages(result: None, self: Any, decode_req: Any) -> None:
    """After a transfer was committed: digests of the request's pages on the decode side."""
    del result
    req = decode_req.req
    _record(self.scheduler, req, role="decode", tokens=len(req.origin_input_ids))


def _record(scheduler: Any, req: Any, *, role: str, tokens: int) -> None:
    folder = state.settings.state_dir
    if folder is None:
        return
    slots = scheduler.req_to_token_pool.req_to_token[req.req_pool_idx, :tokens:PAGE_SIZE]
    pages = slots.cpu().numpy().astype(np.int64) // PAGE_SIZE
    pool = scheduler.token_to_kv_pool_allocator.get_kvcache()
    rank = state.group().rank
    told = {
        str(position): _digest(pool, page, rows=min(PAGE_SIZE, tokens - position * PAGE_SIZE))
        for position, page in _held(pages)
    }
    target = folder / f"pages-{role}-{rank}-{req.bootstrap_room}.json"
    target.write_text(json.dumps(told))


def _held(pages: Int64Array) -> Iterator[tuple[int, int]]:
    """(position, row page of this rank's buffers) of each page that this rank stores."""
    here = state.group()
    shared = state.pool is not None and state.pool.shared
    for position, page in enumerate(pages.tolist()):
        if not shared:
            yield position, page
        elif owner(page, here.ranks) == here.rank:
            yield position, int(physical(page, here.ranks))


def _digest(pool: Any, page: int, *, rows: int) -> str:
    """SHA-256 over the page's valid rows of all layers: MLA, then index keys, then index scales."""
    told = hashlib.sha256()
    keys = PAGE_SIZE * pool.index_head_dim
    for mla, index in zip(pool.kv_buffer, pool.index_k_with_scale_buffer, strict=True):
        first = page * PAGE_SIZE
        told.update(_bytes(mla[first : first + rows]))
        told.update(_bytes(index[page, : rows * pool.index_head_dim]))
        told.update(_bytes(index[page, keys : keys + rows * 4]))
    return told.hexdigest()


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes()
