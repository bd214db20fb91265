"""Bodies of the router API: groups, cache and transfers, as JSON with a fixed form.

All figures are the engines' own, from `GET /plait/status`. `age_s` is how old they are when the answer is
written (a rank's own age added); an engine that cannot be reached keeps its last figures, `reachable` false.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from plait.contract.status import ByteCounts, EngineStatus, PageCounts, RankStatus
from plait.router.api_bodies import (
    Cache,
    Gather,
    Group,
    GroupCache,
    Groups,
    GroupTransfers,
    PairName,
    Prefetch,
    RankCache,
    RankTransfers,
    Split,
    Transfers,
    TransferTotal,
)
from plait.router.metrics import imbalance, mean_run
from plait.router.registry import Registry
from plait.router.report import Report
from plait.router.workers import Worker

__all__ = ["Cache", "Groups", "Transfers", "cache", "groups", "transfers"]


def groups(workers: Registry, reports: Sequence[Report]) -> Groups:
    """All engines, and who is paired with whom. `reports`: of all processes that serve clients."""
    reasons = workers.reasons()
    found = workers.pairs()
    return Groups(
        ready=bool(found),
        pairs=[PairName(prefill=p.prefill.url, decode=p.decode.url) for p in found],
        groups=[_group(w, reasons[w.url], reports) for w in workers.workers],
    )


def cache(workers: Registry) -> Cache:
    """Pages, bytes, gathers and splits of every rank."""
    reasons = workers.reasons()
    return Cache(workers=[_cache(w, reasons[w.url]) for w in workers.workers])


def transfers(workers: Registry) -> Transfers:
    """Transfers of every rank, by pair."""
    reasons = workers.reasons()
    return Transfers(workers=[_transfers(w, reasons[w.url]) for w in workers.workers])


def _head(worker: Worker, reason: str) -> dict[str, object]:
    return {
        "url": worker.url,
        "side": worker.side,
        "reachable": worker.reachable,
        "ready": not reason,
        "trouble": reason,
        "age_s": worker.age,
    }


def _ranks(worker: Worker) -> list[tuple[RankStatus, float]]:
    """The worker's ranks, each with its age now."""
    if worker.status is None:
        return []
    return [(rank, rank.age_s + (worker.age or 0.0)) for rank in worker.status.ranks]


def _group(worker: Worker, reason: str, reports: Sequence[Report]) -> Group:
    status: EngineStatus | None = worker.status
    told = {
        name: getattr(status, name, None)
        for name in (
            "role",
            "layout",
            "split",
            "cp",
            "model",
            "wire_hash",
            "group_hash",
            "started_at",
            "capacity",
        )
    }
    return Group.model_validate(
        _head(worker, reason)
        | told
        | {
            "bootstrap_host": worker.target.bootstrap_host or None,
            "bootstrap_port": worker.target.bootstrap_port or None,
            "identity": worker.target.identity,
            "draining": worker.draining,
            "suspect": worker.suspect,
            "in_flight": sum(r.legs.get(worker.url, 0) for r in reports),
            "breaker": {r.pid: r.breakers[worker.url] for r in reports if worker.url in r.breakers},
            "pids": [] if status is None else [r.pid for r in status.ranks],
            "hooks": [] if status is None else status.hooks,
            "kernels": [] if status is None else status.kernels,
        }
    )


def _cache(worker: Worker, reason: str) -> GroupCache:
    ranks = [
        RankCache(
            rank=r.rank,
            pid=r.pid,
            age_s=age,
            pages=r.pages,
            bytes=r.bytes,
            gather=Gather(
                bytes=r.gather.bytes,
                seconds=r.gather.seconds,
                batches=r.gather.batches,
                runs=r.gather.runs,
                run_pages=r.gather.run_pages,
                fragment_pages=r.gather.fragment_pages,
                mean_run=mean_run(r),
            ),
            peers=r.peers,
            prefetch=Prefetch(hit=r.gather.hit, late=r.gather.late, fallback=r.gather.fallback),
            split=Split(
                forwards=r.split.forwards,
                tokens=r.split.tokens,
                imbalance=imbalance(r),
                off_lane_pages=r.split.off_lane_pages,
            ),
            integrity=r.integrity,
            running=r.running,
            queued=r.queued,
        )
        for r, age in _ranks(worker)
    ]
    status = worker.status
    return GroupCache.model_validate(
        _head(worker, reason)
        | {
            "layout": None if status is None else status.layout,
            "cp": None if status is None else status.cp,
            "capacity": None if status is None else status.capacity,
            "pages": _sum(PageCounts, [r.pages for r in ranks]),
            "bytes": _sum(ByteCounts, [r.bytes for r in ranks]),
            "ranks": ranks,
        }
    )


def _transfers(worker: Worker, reason: str) -> GroupTransfers:
    ranks = [RankTransfers(rank=r.rank, age_s=age, **r.transfer.model_dump()) for r, age in _ranks(worker)]
    total = TransferTotal(
        pages=sum(r.pages for r in ranks),
        bytes=sum(r.bytes for r in ranks),
        seconds=sum(r.seconds for r in ranks),
        failures=sum(r.failures for r in ranks),
    )
    return GroupTransfers.model_validate(_head(worker, reason) | {"total": total, "ranks": ranks})


_Counts = TypeVar("_Counts", PageCounts, ByteCounts)


def _sum(kind: type[_Counts], parts: list[_Counts]) -> _Counts:
    return kind(**{name: sum(getattr(p, name) for p in parts) for name in kind.model_fields})
