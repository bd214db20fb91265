"""Forms of the router API's bodies. What is in them: `plait.router.api`."""

from __future__ import annotations

from pydantic import BaseModel

from plait.contract.status import (
    ByteCounts,
    CapacityStatus,
    GatherPathName,
    HookStatus,
    IntegrityCounts,
    KernelStatus,
    PageCounts,
    PeerCounts,
    TransferCounts,
)
from plait.router.pairing import Side


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
    kernels: list[KernelStatus]


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
    """Bytes gathered from other ranks, seconds spent, and batches by the path of their prefix part.

    Of these parts, once per batch: copies of `runs`, the pages in them, and the pages left to the kernel.
    `mean_run`: pages of a run; None before the first one.
    """

    bytes: int
    seconds: float
    batches: dict[GatherPathName, int]
    runs: int
    run_pages: int
    fragment_pages: int
    mean_run: float | None


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
    peers: PeerCounts
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
