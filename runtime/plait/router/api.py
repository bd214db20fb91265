"""Bodies of the router API: groups, cache and transfers, as JSON with a fixed form.

All figures are the engines' own, from `GET /plait/status`. `age_s` is how old they are when the answer is
written (a rank's own age added); an engine that cannot be reached keeps its last figures, `reachable` false.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from pydantic import BaseModel

from plait.contract.status import (
    ByteCounts,
    CapacityStatus,
    EngineStatus,
    HookStatus,
    IntegrityCounts,
    PageCounts,
    RankStatus,
    TransferCounts,
)
from plait.router.metrics import imbalance
from plait.router.pairing import Side
from plait.router.registry import Registry
from plait.router.report import Report
from plait.router.workers import Worker


class WorkerHead(BaseModel):
    """What every entry says about its engine. `age_s` None: no status was ever read.

    `trouble`: why it is out of rotation; empty while it serves.
    """

    url: str
    side: Side
    reachable: bool
    ready: bool
    trouble: str
    age_s: float | None


class Group(WorkerHead):
    """One engine: a CP group or a decode engine. Fields after `breaker` are None until it told them.

    `identity`: which process is behind the address, where the source of workers knows. `breaker`: of each
    process of the router, by its pid.
    """

    bootstrap_host: str | None
    bootstrap_port: int | None
    identity: str
    draining: bool
    suspect: bool
    in_flight: int
    breaker: dict[int, str]
    role: str | None
    layout: str | None
    split: str | None
    cp: int | None
    model: str | None
    wire_hash: str | None
    group_hash: str | None
    started_at: float | None
    capacity: CapacityStatus | None
    pids: list[int]
    hooks: list[HookStatus]


class PairName(BaseModel):
    """Engines that serve requests together."""

    prefill: str
    decode: str


class Groups(BaseModel):
    """`GET /api/v1/groups`."""

    ready: bool
    pairs: list[PairName]
    groups: list[Group]


class Gather(BaseModel):
    """Bytes gathered from other ranks, and seconds spent."""

    bytes: int
    seconds: float


class Prefetch(BaseModel):
    """Dense views by what the prefetch did."""

    hit: int
    late: int
    fallback: int


class Split(BaseModel):
    """How evenly ownership spread the computed tokens. `imbalance` None: nothing computed yet."""

    forwards: int
    tokens: int
    imbalance: float | None
    off_lane_pages: int


class RankCache(BaseModel):
    """One rank's share of the cache."""

    rank: int
    pid: int
    age_s: float
    pages: PageCounts
    bytes: ByteCounts
    gather: Gather
    prefetch: Prefetch
    split: Split
    integrity: IntegrityCounts
    running: int
    queued: int


class GroupCache(WorkerHead):
    """One engine's cache. `pages` and `bytes` are the sums over `ranks`."""

    layout: str | None
    cp: int | None
    capacity: CapacityStatus | None
    pages: PageCounts
    bytes: ByteCounts
    ranks: list[RankCache]


class Cache(BaseModel):
    """`GET /api/v1/cache`."""

    workers: list[GroupCache]


class RankTransfers(TransferCounts):
    """One rank's transfers, with its pairs (peer, pages, bytes, seconds, failures)."""

    rank: int
    age_s: float


class TransferTotal(BaseModel):
    """Sums over the ranks of one engine."""

    pages: int
    bytes: int
    seconds: float
    failures: int


class GroupTransfers(WorkerHead):
    """Transfers of one engine: sent (prefill) or received (decode)."""

    total: TransferTotal
    ranks: list[RankTransfers]


class Transfers(BaseModel):
    """`GET /api/v1/transfers`."""

    workers: list[GroupTransfers]


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
            gather=Gather(bytes=r.gather.bytes, seconds=r.gather.seconds),
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
