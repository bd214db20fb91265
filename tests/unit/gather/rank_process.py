"""Real rank processes over gloo: each runs the same random batches through dense views and compares bytes.

Started by `run_ranks`; everything that a test wants to know comes back in a list of `Outcome`s, one a rank.
"""

from __future__ import annotations

import multiprocessing as mp
import multiprocessing.forkserver
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from tests.unit.gather.batches import (
    INDEX,
    LAYERS,
    MLA_KINDS,
    Batch,
    PageKind,
    before_writes,
    own_new_pages,
    random_batch,
    random_pools,
)

from plait.gather import (
    CollectiveExchange,
    DenseView,
    Fetch,
    GatherPlan,
    GatherStats,
    PartIndex,
    Pending,
    Scratch,
    ScratchShape,
    page_rows,
)
from plait.gather.reference import dense_reference
from plait.gather.scratch import POISON

STRIPES = 6
BUDGET = 48
_HANG_S = 280


class Outcome(NamedTuple):
    """What a rank saw. orders: its collectives in order, as (group, layer bytes, pages sent). idle: cases in
    which it owned no page. prefixes: cases with a cached prefix."""

    cases: int
    orders: list[tuple[str, int, int]]
    idle: int
    prefixes: int
    stats: GatherStats


def run_ranks(work: Callable[..., Any], *, ranks: int, folder: Path, **given: object) -> list[Any]:
    """Run `work(rank, ranks, **given)` in one process a rank; raise with the traceback of one that failed."""
    # Fresh processes as with "spawn", but torch is imported once for all of them.
    context = mp.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    pipes, processes = [], []
    for rank in range(ranks):
        here, there = context.Pipe(duplex=False)
        process = context.Process(
            target=_main, args=(work, rank, ranks, str(folder / "store"), there, given), daemon=True
        )
        process.start()
        there.close()
        pipes.append(here)
        processes.append(process)
    outcomes = []
    try:
        for rank, pipe in enumerate(pipes):
            if not pipe.poll(_HANG_S):
                raise TimeoutError(f"rank {rank} did not end within {_HANG_S} s")
            told = pipe.recv()
            if isinstance(told, str):
                raise AssertionError(f"rank {rank} failed:\n{told}")
            outcomes.append(told)
    finally:
        for process in processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
    return outcomes


def stop_server() -> None:
    """End the process that ranks are forked from: with torch in it, it holds half a gigabyte."""
    mp.forkserver._forkserver._stop()


def _main(
    work: Callable[..., Any],
    rank: int,
    ranks: int,
    store: str,
    pipe: Connection,
    given: dict[str, object],
) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(store, ranks),
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=_HANG_S / 2),
        )
        pipe.send(work(rank, ranks, **given))
        dist.barrier()
    except BaseException:
        pipe.send(traceback.format_exc())
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


class _Recorded:
    """A collective exchange that notes the order of its launches."""

    def __init__(self, name: str, orders: list[tuple[str, int, int]]) -> None:
        self._name, self._orders = name, orders
        self._inner = CollectiveExchange(dist.new_group(backend="gloo"))

    def prepare(self, part: PartIndex) -> Fetch:
        return _RecordedFetch(self._name, self._orders, self._inner.prepare(part), part.plan.block)


class _RecordedFetch(NamedTuple):
    name: str
    orders: list[tuple[str, int, int]]
    inner: Fetch
    block: int

    def launch(self, source: torch.Tensor, target: torch.Tensor) -> Pending:
        self.orders.append((self.name, source.shape[1], self.block))
        return self.inner.launch(source, target)


class _Kind(NamedTuple):
    """One kind's view in one case. final: [layer][rank] bytes; own: this rank's pools, not yet written."""

    view: DenseView
    scratch: Scratch
    final: list[list[torch.Tensor]]
    own: list[torch.Tensor]


def gather_random_batches(rank: int, ranks: int, *, cases: int, prefetch: bool) -> Outcome:
    """Every layer of every batch must equal the reference, byte for byte, over poisoned scratch."""
    orders: list[tuple[str, int, int]] = []
    exchanges = {
        name: (_Recorded(f"{name} ahead", orders), _Recorded(f"{name} now", orders))
        for name in ("index", "mla")
    }
    stats = GatherStats()
    expected = GatherStats()
    idle = prefixes = 0
    for case in range(cases):
        rng = np.random.default_rng(1000 + case)
        batch = random_batch(rng, ranks=ranks, stripes=STRIPES)
        plan = GatherPlan.from_requests(batch.requests, ranks=ranks, budget=BUDGET)
        kinds = []
        for name, kind in (("index", INDEX), ("mla", MLA_KINDS[case % len(MLA_KINDS)])):
            kinds.append(_kind(rng, batch, kind, rank, ranks, exchanges[name], prefetch, stats))
        for one in kinds:
            one.view.begin(plan, rank=rank, device=torch.device("cpu"))
        for layer in range(LAYERS):
            for one in kinds:
                _write_chunk(one, layer, batch, rank, ranks)
                _compare(one, layer, batch, plan)
        _expect(expected, plan, [one.scratch for one in kinds], rank)
        idle += all(part.remote_pages(rank) == part.pages for part in (plan.prefix, plan.chunk))
        prefixes += plan.prefix.block > 0
    assert stats.bytes == expected.bytes
    return Outcome(cases, orders, idle, prefixes, stats)


def _kind(
    rng: np.random.Generator,
    batch: Batch,
    kind: PageKind,
    rank: int,
    ranks: int,
    exchanges: tuple[_Recorded, _Recorded],
    prefetch: bool,
    stats: GatherStats,
) -> _Kind:
    final = random_pools(rng, kind, ranks=ranks, stripes=STRIPES)
    rows, *rest = kind.shape
    own = []
    for layer in range(LAYERS):
        buffer = torch.empty(((STRIPES + 1) * rows, *rest), dtype=kind.dtype)
        pages = page_rows(buffer, STRIPES + 1)
        pages.copy_(before_writes(final[layer][rank], batch, rank=rank, ranks=ranks))
        own.append(pages)
    scratch = Scratch(ScratchShape(BUDGET, kind.shape, kind.dtype), device=torch.device("cpu"))
    scratch.poison()
    ahead, now = exchanges
    view = DenseView(own, scratch, ahead=ahead, now=now, prefetch=prefetch, stats=stats)
    return _Kind(view, scratch, final, own)


def _write_chunk(one: _Kind, layer: int, batch: Batch, rank: int, ranks: int) -> None:
    pages = own_new_pages(batch, rank=rank, ranks=ranks)
    one.own[layer][pages] = one.final[layer][rank][pages]


def _compare(one: _Kind, layer: int, batch: Batch, plan: GatherPlan) -> None:
    dense = one.view.consume(layer)
    again = one.view.consume(layer)
    assert again is dense
    rows = page_rows(dense, one.scratch.pages + 1)
    expected = dense_reference(one.final[layer], batch.requests)
    wrong = (rows[: plan.pages] != expected).any(1).nonzero().flatten().tolist()
    assert not wrong, f"layer {layer}: dense pages {wrong} differ from their owners' ({batch})"
    beyond = rows[plan.pages : one.scratch.pages]
    assert (beyond == POISON).all(), f"layer {layer}: pages beyond the plan were written"


def _expect(expected: GatherStats, plan: GatherPlan, scratches: list[Scratch], rank: int) -> None:
    remote = plan.prefix.remote_pages(rank) + plan.chunk.remote_pages(rank)
    expected.bytes += LAYERS * remote * sum(scratch.rows(0).shape[1] for scratch in scratches)
