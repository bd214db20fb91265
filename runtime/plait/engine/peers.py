"""The pools of a group's ranks in memory that all of them map, where they can; collectives else.

Either all ranks map or none does, so that no rank gathers another way than the others.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from plait.contract.setting_kinds import GatherPath, PeerAccess
from plait.contract.status import PeerCounts
from plait.engine import state
from plait.engine.entry import end_engine, stop
from plait.engine.install import implements
from plait.peer import (
    Barrier,
    MappedMemory,
    PeersCannotMapError,
    PeerWatch,
    Segment,
    open_barrier,
    open_peer_memory,
)

_BATCH, _INDEX, _MLA = range(3)
"""Channels of the barriers' pads: each kind and the start of a batch count their own meetings."""


@dataclass(frozen=True)
class Barriers:
    """batch: met once before a batch reads or writes. index, mla: once a layer, after the chunk's writes."""

    batch: Barrier
    index: Barrier
    mla: Barrier

    @property
    def every(self) -> tuple[Barrier, ...]:
        """All of them."""
        return self.batch, self.index, self.mla


class PeerPools:
    """The mapped memory of this rank's pools and its barriers; a lost rank ends the engine by name."""

    def __init__(self, memory: MappedMemory) -> None:
        self.memory = memory
        self.device = memory.device
        self.barriers = Barriers(
            *(
                open_barrier(memory, channel=channel, name=name, timeout_s=state.settings.peer_timeout_s)
                for channel, name in ((_BATCH, "batch"), (_INDEX, "index"), (_MLA, "mla"))
            )
        )
        self.watch = PeerWatch(peers=memory.peers, barriers=self.barriers.every, on_fault=_lost)


def _lost(message: str) -> None:
    """A rank is gone: no batch can be finished without it, and this rank's device may have been stopped."""
    _tell(message)
    end_engine()


def _tell(message: str) -> None:
    print(f"plait: {message}; this engine ends itself", file=sys.stderr, flush=True)


_LOSS_SHOWS_WITHIN_S = 1.0


@implements("managers.scheduler.Scheduler.run_event_loop")
def watched_until_the_end(original: Callable[[Any], None], self: Any) -> None:
    """Stop watching the other ranks at an orderly end, in which they end too.

    A lost rank breaks the others' connections to it, and the engine may end on that error before the watch
    has looked again: the loss that caused it is told here, or nobody would know which rank it was.
    """
    try:
        original(self)
    except Exception:
        if state.peers is not None:
            state.peers.watch.close()
            if (message := state.peers.watch.find(within_s=_LOSS_SHOWS_WITHIN_S)) is not None:
                _tell(message)
        raise
    if state.peers is not None:
        state.peers.watch.close()


def counts() -> PeerCounts:
    """What the status says of the mapped memory now. From any thread; touches no device."""
    told = state.peer_counts
    lost = state.peers is not None and any(barrier.fault() for barrier in state.peers.barriers.every)
    return told.model_copy(update={"timeouts": 1}) if lost else told


def device_of(name: str) -> torch.device:
    """The device that the engine names ("cuda", "cpu"), with its index."""
    device = torch.device(name)
    return torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" else device


_PROBE = (Segment("probe", 64),)


def peers_can_map(device: torch.device) -> bool:
    """Whether the ranks map each other's memory, tried once with a small piece; all ranks get one answer.

    Asked before the memory is planned: collectives need buffers that mapped pools do not. Ends the process
    where peers are required and cannot be had.
    """
    settings = state.settings
    if settings.peer_access is PeerAccess.OFF or settings.gather_path is GatherPath.COLLECTIVE:
        state.peer_counts = PeerCounts(state="off")
    elif state.peer_counts.state == "unused":
        try:
            _check_allocator()
            _open(_PROBE, unit_bytes=(1,), device=device, name="probe").close()
            state.peer_counts = PeerCounts(state="mapped")
        except PeersCannotMapError as error:
            _refused(str(error))
    return state.peer_counts.state == "mapped"


def _check_allocator() -> None:
    """Raise PeersCannotMapError where the pools must be allocations of the engine's. Equal on all ranks."""
    from sglang.srt.environ import envs
    from sglang.srt.runtime_context import get_server_args

    if envs.SGLANG_MOONCAKE_CUSTOM_MEM_POOL.get() is not None:
        raise PeersCannotMapError("SGLANG_MOONCAKE_CUSTOM_MEM_POOL gives the pools an allocator of its own")
    if get_server_args().enable_memory_saver:
        raise PeersCannotMapError("--enable-memory-saver frees the pools while the engine sleeps")


def map_pools(segments: Sequence[Segment], *, unit_bytes: Sequence[int], device: torch.device) -> PeerPools:
    """Memory for `segments` (zeroed), mapped by all ranks; only where `peers_can_map`.

    A failure ends the engine: the memory was planned for mapped pools.
    """
    try:
        return PeerPools(_open(segments, unit_bytes=unit_bytes, device=device, name="pools"))
    except PeersCannotMapError as error:
        total = sum(segment.nbytes for segment in segments)
        stop(
            f"the ranks of this group mapped a small piece of each other's memory, but not their pools of "
            f"{total} bytes: {error}. Fix: a smaller --mem-fraction-static, or PLAIT_PEER_ACCESS=off"
        )


def _open(
    segments: Sequence[Segment], *, unit_bytes: Sequence[int], device: torch.device, name: str
) -> MappedMemory:
    here = state.group()
    return open_peer_memory(
        segments,
        rank=here.rank,
        ranks=here.ranks,
        device=device,
        folder=_folder(),
        unit_bytes=unit_bytes,
        timeout_s=state.settings.peer_timeout_s,
        group=name,
    )


def _refused(why: str) -> None:
    if state.settings.peer_access is PeerAccess.REQUIRED:
        stop(
            f"PLAIT_PEER_ACCESS = required: the ranks of this group cannot map each other's memory: {why}. "
            "Fix: PLAIT_PEER_ACCESS=auto (collectives), or GPUs of one host that reach each other"
        )
    if state.group().rank == 0:
        print(f"plait: gathering by collectives: the ranks cannot map each other's memory: {why}", flush=True)
    state.peer_counts = PeerCounts(state="refused", reason=why, fallbacks=1)


def _folder() -> Path:
    """Where the ranks of this engine meet: short, as a socket's path must be, and this engine's own."""
    engine = hashlib.sha256(str(state.settings.state_dir).encode()).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"plait-peers-{engine}"
