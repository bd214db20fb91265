"""The speeds of this host, measured once at start on the pools themselves: some milliseconds.

Times differ between ranks, and a policy must not: every rank takes rank 0's table (`agreed`).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from plait.contract.layouts import PAGE_SIZE
from plait.gather.copy_engine import Mover
from plait.gather.costs import CostTable
from plait.gather.exchange import Fetch, PartIndex
from plait.gather.peer_exchange import PeerExchange, Spans
from plait.gather.plan import GatherPlan, GatherRequest
from plait.gather.runs import RunLimits
from plait.gather.scratch import Scratch
from plait.gather.view import GatherStats
from plait.layout import Int64Array
from plait.peer import Barrier

ROUNDS = 5
LARGE_PAGES = 2048
"""128K tokens: large enough that the start does not matter, and about 0.3 ms."""
SMALL_PAGES = 128
LEAST_CALL_US, MOST_CALL_US = 0.5, 10.0
"""A host that is busy while it measures must not turn all copies off for good."""
_LEAST_PAGES = 4 * SMALL_PAGES
_SLEEP_CYCLES = 400_000
"""About 0.2 ms for the host to get ahead of the device."""


def measure(spans: Spans, scratch: Scratch, *, mover: Mover, barrier: Barrier, table: CostTable) -> CostTable:
    """`table` with the starts and speeds of copies, pulls and barriers of this host instead.

    spans, scratch, barrier: of the MLA kind, not in use; the slots' contents are lost. Every rank calls it
    at once: all read from all, as in a forward. `table` itself on a host without a GPU, and where pool or
    scratch hold too little to measure.
    """
    pages = min(LARGE_PAGES, scratch.pages, (spans.own[0].shape[0] - 1) * spans.ranks)
    if spans.device.type != "cuda" or spans.ranks == 1 or pages < _LEAST_PAGES:
        return table
    bench = _Bench(spans, scratch, barrier)
    runs = PeerExchange(spans, mover, limits=RunLimits(0, 2**31), stats=GatherStats())
    kernel = PeerExchange(spans, mover, limits=RunLimits(0, 0), stats=GatherStats())
    copy_gbps, copy_start = bench.line(runs, pages)
    pull_gbps, pull_start = bench.line(kernel, pages)
    # The small gather once more, in runs of two pages. A call costs the host or the device, whoever is later.
    whole, broken = (bench.timed(bench.fetch(runs, SMALL_PAGES, broken=broken)) for broken in (False, True))
    calls = SMALL_PAGES // 2 - spans.ranks
    call = max(broken.device - whole.device, broken.host - whole.host) / calls
    return dataclasses.replace(
        table,
        source=f"measured: {spans.ranks} x {torch.cuda.get_device_name(spans.device)}, {pages} pages",
        copy_start_us=copy_start,
        copy_call_us=min(max(call, LEAST_CALL_US), MOST_CALL_US),
        copy_gbps=copy_gbps,
        pull_start_us=pull_start,
        pull_gbps=pull_gbps,
        barrier_us=bench.barrier_us(),
    )


def probe(count: int, *, ranks: int, broken: bool) -> Int64Array:
    """Logical pages of a prefix, np.int64 [count]: the pool's first ones, in one run per owner; `broken`: the
    same in runs of two pages."""
    pages = np.arange(count, dtype=np.int64) + ranks
    if not broken:
        return pages
    whole = count // (4 * ranks) * 4 * ranks
    # Two stripes and the two before them, in turn: neighbours in pairs, and no longer runs.
    turned = pages[:whole].reshape(-1, 2, 2 * ranks)[:, ::-1].reshape(-1)
    return np.concatenate([turned, pages[whole:]])


def agreed(table: CostTable, group: dist.ProcessGroup) -> CostTable:
    """Rank 0's table, on every rank of `group` (of the CPU, or of this rank's current device)."""
    told = [table.to_json()]
    dist.broadcast_object_list(told, src=dist.get_global_rank(group, 0), group=group)
    return CostTable.from_json(told[0])


class _Spent(NamedTuple):
    """Microseconds of the device, and of the host to launch it."""

    device: float
    host: float


class _Bench:
    def __init__(self, spans: Spans, scratch: Scratch, barrier: Barrier) -> None:
        self._spans, self._scratch, self._barrier = spans, scratch, barrier
        self._turn = 0

    def fetch(self, exchange: PeerExchange, count: int, *, broken: bool = False) -> Fetch:
        """A prefix of the first `count` pages; `broken`: in runs of two pages instead of one per owner."""
        ranks = self._spans.ranks
        pages = probe(count, ranks=ranks, broken=broken)
        plan = GatherPlan.from_requests(
            [GatherRequest(count * PAGE_SIZE, 0, pages)], ranks=ranks, budget=count
        )
        return exchange.prepare(
            PartIndex(plan.prefix, self._spans.rank, self._scratch.trash, self._spans.device)
        )

    def line(self, exchange: PeerExchange, pages: int) -> tuple[float, float]:
        """GB/s and start in us, from the times of few and of many pages."""
        small, large = (self.timed(self.fetch(exchange, count)).device for count in (SMALL_PAGES, pages))
        away = (self._spans.ranks - 1) / self._spans.ranks * self._spans.page_bytes
        per_page = max((large - small) / (pages - SMALL_PAGES), 1e-6)
        return away / per_page / 1e3, max(small - SMALL_PAGES * per_page, 1.0)

    def timed(self, fetch: Fetch) -> _Spent:
        """One landing: the medians of a few, layers and slots in turn."""

        def once() -> None:
            layer = self._turn % len(self._spans.own)
            self._turn += 1
            fetch.launch(self._spans.own[layer], self._scratch.rows(self._turn % 2)).wait()

        once()
        rounds = [self._spent(once) for _ in range(ROUNDS)]
        return _Spent(median(one.device for one in rounds), median(one.host for one in rounds))

    def barrier_us(self) -> float:
        def several() -> None:
            for _ in range(ROUNDS):
                self._barrier.meet()

        return max(median(self._spent(several).device for _ in range(ROUNDS)) / ROUNDS, 0.5)

    def _spent(self, run: Callable[[], None]) -> _Spent:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda._sleep(_SLEEP_CYCLES)  # type: ignore[no-untyped-call]
        self._barrier.meet()
        start.record()
        began = time.perf_counter()
        run()
        host = time.perf_counter() - began
        end.record()
        end.synchronize()
        return _Spent(float(start.elapsed_time(end)) * 1e3, host * 1e6)
