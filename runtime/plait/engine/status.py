"""What a rank leaves of its figures for others to read, and the route that serves them.

Each rank process renews one small file a few times a second, from a thread of its own, so that no figure
costs the forward anything; the engine's HTTP process reads them all and adds what the group has in common.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from plait.contract.capacity import tokens_for_bytes
from plait.contract.layouts import PAGE_SIZE, Layout
from plait.contract.status import (
    STATUS_PATH,
    ByteCounts,
    CapacityStatus,
    EngineStatus,
    GatherCounts,
    HookStatus,
    IntegrityCounts,
    PageCounts,
    PairCounts,
    RankStatus,
    SplitCounts,
    TransferCounts,
)
from plait.engine import identity, peers, state, transfer
from plait.engine.holders import in_flight
from plait.engine.host_pages import ROW
from plait.engine.integrity import IntegrityCheck

INTEGRITY_PATH = "/plait/integrity"


class StatusWriter(threading.Thread):
    """Renews this rank's file every PLAIT_STATUS_INTERVAL_S. Reads the scheduler's figures without locks: a
    figure may be one batch old, never torn (ints and lengths)."""

    def __init__(self, scheduler: Any, folder: Path) -> None:
        super().__init__(name="plait-status", daemon=True)
        self._scheduler = scheduler
        self._folder = folder
        self._rank = state.group().rank
        self._since = time.time()

    def run(self) -> None:
        while True:
            try:
                self.write()
            except Exception as error:  # a status that stops would look like a dead rank: say why, go on
                print(f"plait: rank status failed: {type(error).__name__}: {error}", flush=True)
            time.sleep(state.settings.status_interval_s)

    def write(self) -> None:
        """Renew the file now; readers see the old one or the new one, whole."""
        check = state.integrity
        if check is not None:
            check.poll_request(self._folder)
        told = {"rank": self.rank_status().model_dump(), "engine": self.engine_status()}
        target = rank_file(self._folder, self._rank)
        fresh = target.with_suffix(f".{os.getpid()}.tmp")
        fresh.write_text(json.dumps(told))
        fresh.replace(target)

    def rank_status(self) -> RankStatus:
        """This rank's figures now."""
        scheduler = self._scheduler
        return RankStatus(
            rank=self._rank,
            pid=os.getpid(),
            updated_at=time.time(),
            pages=self._pages(),
            bytes=self._bytes(),
            gather=_gather(),
            peers=peers.counts(),
            transfer=_transfer(),
            split=_split(),
            integrity=state.integrity.counts() if state.integrity is not None else IntegrityCounts(),
            running=len(scheduler.running_batch.reqs) + (scheduler.chunked_req is not None),
            queued=_queued(scheduler),
        )

    def _pages(self) -> PageCounts:
        scheduler = self._scheduler
        allocator = scheduler.token_to_kv_pool_allocator
        if state.allocator is None:
            owned, free = allocator.size // PAGE_SIZE, allocator.available_size() // PAGE_SIZE
        else:
            owned = state.allocator.geometry.pages_per_rank
            free = int(state.allocator.pages.available_per_lane[self._rank])
        return PageCounts(owned=owned, free=free, used=owned - free, in_flight=self._in_flight())

    def _in_flight(self) -> int:
        """Pages of this rank that belong to requests in transfer."""
        scheduler = self._scheduler
        table = scheduler.req_to_token_pool.req_to_token
        ranks = state.group().ranks if state.allocator is not None else 1
        count = 0
        for req in in_flight(scheduler):
            kv, row = req.kv, req.req_pool_idx
            if kv is None or row is None:
                continue
            pages = getattr(req, ROW, None)
            if pages is None:
                pages = table[row, : kv.kv_allocated_len : PAGE_SIZE].cpu().numpy() // PAGE_SIZE
            count += int(np.count_nonzero(pages % ranks == self._rank % ranks))
        return count

    def _bytes(self) -> ByteCounts:
        pool = self._scheduler.token_to_kv_pool_allocator.get_kvcache()
        return ByteCounts(
            mla=sum(buffer.nbytes for buffer in pool.kv_buffer),
            index=sum(buffer.nbytes for buffer in getattr(pool, "index_k_with_scale_buffer", ())),
            scratch=state.pool.scratch_bytes if state.pool is not None else 0,
        )

    def _tokens_replicated(self, tokens: int) -> int:
        """Tokens that the replicated layout would hold in the pool bytes that this rank has."""
        if state.settings.layout is not Layout.SHARED:
            return tokens
        wire, held = identity.wire_contract(), self._bytes()
        return tokens_for_bytes(
            held.mla + held.index,
            ranks=state.group().ranks,
            layers=wire.layers,
            row=wire.mla_row_bytes + wire.index_row_bytes,
            layout=Layout.REPLICATED,
        )

    def engine_status(self) -> dict[str, Any]:
        """What is the same for all ranks of this engine."""
        arguments = self._scheduler.server_args
        ranks = state.group().ranks
        tokens = self._scheduler.token_to_kv_pool_allocator.size
        return EngineStatus(
            role=identity.role(arguments).value,
            layout=state.settings.layout.value,  # type: ignore[arg-type]
            split=state.settings.split.value if state.settings.layout.splits else "",
            cp=ranks,
            model=arguments.served_model_name or arguments.model_path,
            wire_hash=identity.wire_hash(),
            group_hash=identity.group_contract().hash,
            started_at=self._since,
            capacity=CapacityStatus(
                tokens=tokens,
                tokens_replicated=self._tokens_replicated(tokens),
                scratch_tokens=state.pool.scratch_tokens if state.pool is not None else 0,
                page_size=PAGE_SIZE,
            ),
            kernels=state.kernels,
            hooks=[
                HookStatus(target=a.target.path, kind=a.target.kind.value, state="applied")
                for a in state.hooks
            ],
        ).model_dump()


def _queued(scheduler: Any) -> int:
    waiting = len(scheduler.waiting_queue)
    for name in ("disagg_prefill_bootstrap_queue", "disagg_decode_prealloc_queue"):
        queue = getattr(scheduler, name, None)
        waiting += len(queue.queue) if queue is not None else 0
    return waiting


def _gather() -> GatherCounts:
    if state.pool is None:
        return GatherCounts()
    stats = state.pool.gather_stats
    return GatherCounts(
        bytes=stats.bytes,
        seconds=stats.seconds,
        hit=stats.hit,
        late=stats.late,
        fallback=stats.fallback,
        batches=state.pool.gather_batches,
        runs=stats.runs,
        run_pages=stats.run_pages,
        fragment_pages=stats.fragment_pages,
    )


def _transfer() -> TransferCounts:
    pairs = [PairCounts(**total._asdict()) for total in transfer.stats.totals()]
    return TransferCounts(
        pages=sum(p.pages for p in pairs),
        bytes=sum(p.bytes for p in pairs),
        seconds=sum(p.seconds for p in pairs),
        failures=sum(p.failures for p in pairs),
        pairs=pairs,
    )


def _split() -> SplitCounts:
    if state.strategy is None or state.allocator is None:
        return SplitCounts()
    stats = state.strategy.stats
    return SplitCounts(
        forwards=stats.forwards,
        tokens=stats.tokens,
        max_tokens=stats.max_tokens,
        mean_tokens=stats.mean_tokens,
        off_lane_pages=state.allocator.pages.off_lane,
    )


# --- the HTTP process --------------------------------------------------------------------------------


def rank_file(folder: Path, rank: int) -> Path:
    """Where a rank leaves its figures."""
    return folder / f"rank-{rank}.json"


def clear(folder: Path) -> None:
    """Forget what an earlier engine left in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("rank-*"), *folder.glob("integrity-*")):
        old.unlink(missing_ok=True)


def read(folder: Path, *, ranks: int) -> EngineStatus | None:
    """The engine's status from its ranks' files, or None while some rank has not written yet.

    `age_s` of each rank is filled in here.
    """
    found = []
    for rank in range(ranks):
        try:
            found.append(json.loads(rank_file(folder, rank).read_text()))
        except (OSError, ValueError):
            return None
    try:
        status = EngineStatus.model_validate(found[0]["engine"])
        status.ranks = [RankStatus.model_validate(one["rank"]) for one in found]
    except (KeyError, ValidationError):
        return None
    now = time.time()
    for one in status.ranks:
        one.age_s = max(0.0, now - one.updated_at)
    return status


def add_routes(app: Any, *, folder: Path, ranks: int) -> None:
    """Serve `GET /plait/status` and `POST /plait/integrity` from the engine's own HTTP server."""
    from fastapi.responses import JSONResponse, Response

    def starting() -> Response:
        return JSONResponse({"error": "starting: not every rank has reported yet"}, status_code=503)

    def status() -> Response:
        found = read(folder, ranks=ranks)
        return (
            starting() if found is None else Response(found.model_dump_json(), media_type="application/json")
        )

    def integrity() -> Response:
        outcome = IntegrityCheck.request(folder, ranks=ranks)
        return JSONResponse(outcome, status_code=200 if outcome["done"] else 504)

    app.add_api_route(STATUS_PATH, status, methods=["GET"])
    app.add_api_route(INTEGRITY_PATH, integrity, methods=["POST"])
