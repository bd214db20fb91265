"""What one engine process knows about itself: set once at start, read by the hooks.

The engine passes no context of ours between its parts (its arguments are pickled, its pools and
strategies are built far apart), so the few shared objects live here, in the process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from plait.contract.settings import Settings
from plait.contract.status import KernelStatus, PeerCounts

if TYPE_CHECKING:
    import torch

    from plait.engine.allocator import OwnedPageAllocator
    from plait.engine.install import Applied
    from plait.engine.integrity import IntegrityCheck
    from plait.engine.peers import PeerPools
    from plait.engine.pool import OwnedPagePool
    from plait.engine.status import StatusWriter
    from plait.engine.strategy import OwnerSplitStrategy


class Group(NamedTuple):
    """This process's place in its context-parallel group."""

    rank: int
    ranks: int


settings: Settings = Settings()
hooks: list[Applied] = []

strategy: OwnerSplitStrategy | None = None
pool: OwnedPagePool | None = None
peers: PeerPools | None = None
peer_counts: PeerCounts = PeerCounts()
kernels: list[KernelStatus] = []
allocator: OwnedPageAllocator | None = None
status: StatusWriter | None = None
integrity: IntegrityCheck | None = None
kv_dtype: torch.dtype | None = None


def group() -> Group:
    """Rank and size of the CP group. Only after the engine has set its parallel state up."""
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    return Group(rank=parallel.attn_cp_rank, ranks=parallel.attn_cp_size)
