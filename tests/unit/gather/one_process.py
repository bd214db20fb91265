"""All ranks of a group in one process: memory side by side, moved by the same code as between processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from tests.unit.gather.batches import TRASH

from plait.peer import Segment

CPU = torch.device("cpu")
ALIGNED = 256


class Side:
    """Memory of all ranks; `at(rank)` is what that rank sees as its `PeerMemory`."""

    def __init__(self, segments: Sequence[Segment], *, ranks: int, unit_bytes: Sequence[int]) -> None:
        self.ranks = ranks
        self.offsets: dict[str, tuple[int, int]] = {}
        end = 0
        for name, nbytes in segments:
            self.offsets[name] = (end, nbytes)
            end += -(-nbytes // ALIGNED) * ALIGNED
        unit = math.lcm(ALIGNED, *unit_bytes)
        self.stride = -(-end // unit) * unit
        # Holes are poisoned: what reads them is seen.
        self.bytes = torch.full((self.stride * ranks,), TRASH, dtype=torch.uint8)

    def at(self, rank: int) -> RankMemory:
        return RankMemory(self, rank)


@dataclass
class RankMemory:
    """`plait.peer.PeerMemory` of one rank of `side`."""

    side: Side
    rank: int
    device: torch.device = CPU

    @property
    def ranks(self) -> int:
        return self.side.ranks

    @property
    def stride(self) -> int:
        return self.side.stride

    def own(self, segment: str) -> torch.Tensor:
        return self.of(self.rank, segment)

    def of(self, rank: int, segment: str) -> torch.Tensor:
        offset, nbytes = self.side.offsets[segment]
        return self.side.bytes[rank * self.stride + offset :][:nbytes]

    def spanning(self, segment: str) -> torch.Tensor:
        offset, nbytes = self.side.offsets[segment]
        return self.side.bytes[offset : offset + (self.ranks - 1) * self.stride + nbytes]

    def close(self) -> None:
        return


@dataclass
class CountingBarrier:
    """Ranks in one process are never apart; what is tested is how often each comes, and when."""

    log: list[str] = field(default_factory=list)
    name: str = "test"
    timeout_s: float = 1.0

    def meet(self) -> None:
        self.log.append(f"meet {self.name}")

    def fault(self) -> None:
        return None


def random_bytes(rng: np.random.Generator, count: int) -> torch.Tensor:
    return torch.from_numpy(rng.integers(0, 256, count, dtype=np.uint8))
