"""What every engine says about its shared cache: the one JSON that engine, router and operator agree on.

An engine serves `EngineStatus` at `GET /plait/status` (`STATUS_PATH`); each rank process renews its own
`RankStatus` a few times a second, so a reader must look at `age_s` before it believes a figure.
All counters grow monotonically from the start of the process (`started_at`); a reader that sees a new
`started_at` or `pid` at the same address is looking at a new engine.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

STATUS_PATH = "/plait/status"
STATUS_VERSION = 1

GatherPathName = Literal["none", "copy", "pull", "collective", "peer-view"]
"""How the prefix part of a batch's dense view was fetched; none: there was no prefix."""
PeerState = Literal["unused", "off", "mapped", "refused"]
"""Of the pools that ranks map into each other. unused: the layout gathers nothing. off: by setting.
refused: they could not be mapped, and all ranks gather by collectives."""


class _Status(BaseModel):
    # Unknown fields are kept out, missing ones are an error: a reader of another version must notice.
    model_config = ConfigDict(extra="forbid")


class PageCounts(_Status):
    """Pages of one rank's pool. `owned` = `free` + `used`; `used` = `tree` + `requests` + `in_flight`.

    `owned` counts the pages this rank stores that a request can hold (the reserved stripe 0 is not one);
    `in_flight` are pages of finished requests whose transfer has not ended yet.
    """

    owned: int = 0
    free: int = 0
    used: int = 0
    in_flight: int = 0


class ByteCounts(_Status):
    """Allocated tensor bytes of one rank: pools over all layers, and the dense scratch beside them."""

    mla: int = 0
    index: int = 0
    scratch: int = 0


class GatherCounts(_Status):
    """Dense views built: bytes that came from other ranks, seconds spent, and what the prefetch did.

    `hit`: the prefix had arrived when a layer asked for it; `late`: it was under way and had to be waited
    for; `fallback`: nothing had been launched, so the consumer launched it itself.

    `batches`: by the path of their prefix part. Of these parts, once per batch: `runs` copies that the copy
    engine was given, `run_pages` in them, and `fragment_pages` that were left to the kernel.
    """

    bytes: int = 0
    seconds: float = 0.0
    hit: int = 0
    late: int = 0
    fallback: int = 0
    batches: dict[GatherPathName, int] = Field(default_factory=dict)
    runs: int = 0
    run_pages: int = 0
    fragment_pages: int = 0


class PeerCounts(_Status):
    """Memory that the ranks of a group map into each other, and the barriers in it.

    `reason`: why it was refused, in words. `fallbacks`: how often this rank went over to collectives for it.
    `timeouts`: barriers that a rank was missing at; the group stops, so more than one is seldom seen.
    """

    state: PeerState = "unused"
    reason: str = ""
    fallbacks: int = 0
    timeouts: int = 0


class PairCounts(_Status):
    """Transfers from this rank to one decode session."""

    peer: str
    pages: int = 0
    bytes: int = 0
    seconds: float = 0.0
    failures: int = 0


class TransferCounts(_Status):
    """Owned pages that this rank sent to decode engines, per pair. A decode engine sends none."""

    pages: int = 0
    bytes: int = 0
    seconds: float = 0.0
    failures: int = 0
    pairs: list[PairCounts] = Field(default_factory=list)


class SplitCounts(_Status):
    """How evenly ownership spread the computed tokens: `max_tokens / mean_tokens` is the imbalance."""

    forwards: int = 0
    tokens: int = 0
    max_tokens: int = 0
    mean_tokens: float = 0.0
    off_lane_pages: int = 0


class IntegrityCounts(_Status):
    """Runs of the page accounting check, and the last violation in words (empty: none seen)."""

    runs: int = 0
    failures: int = 0
    last_failure: str = ""


class RankStatus(_Status):
    """One CP rank's process."""

    rank: int
    pid: int
    updated_at: float
    age_s: float = 0.0
    pages: PageCounts = Field(default_factory=PageCounts)
    bytes: ByteCounts = Field(default_factory=ByteCounts)
    gather: GatherCounts = Field(default_factory=GatherCounts)
    peers: PeerCounts = Field(default_factory=PeerCounts)
    transfer: TransferCounts = Field(default_factory=TransferCounts)
    split: SplitCounts = Field(default_factory=SplitCounts)
    integrity: IntegrityCounts = Field(default_factory=IntegrityCounts)
    running: int = 0
    queued: int = 0


class HookStatus(_Status):
    """One hook on the stock engine. `state`: `applied`, or why it is not."""

    target: str
    kind: str
    state: str


class KernelStatus(_Status):
    """Which implementation of one kernel all ranks use. `reason`: why not Triton's, in words."""

    name: str
    implementation: Literal["triton", "torch"]
    reason: str = ""


class CapacityStatus(_Status):
    """Tokens a group can hold, and what the replicated layout would hold at the same bytes per rank."""

    tokens: int = 0
    tokens_replicated: int = 0
    scratch_tokens: int = 0
    page_size: int = 64


class EngineStatus(_Status):
    """Body of `GET /plait/status`."""

    version: int = STATUS_VERSION
    role: Literal["prefill", "decode", "unified"]
    layout: Literal["plain", "replicated", "shared"]
    split: str = ""
    cp: int = 1
    model: str = ""
    wire_hash: str = ""
    group_hash: str = ""
    started_at: float = 0.0
    capacity: CapacityStatus = Field(default_factory=CapacityStatus)
    ranks: list[RankStatus] = Field(default_factory=list)
    hooks: list[HookStatus] = Field(default_factory=list)
    kernels: list[KernelStatus] = Field(default_factory=list)
