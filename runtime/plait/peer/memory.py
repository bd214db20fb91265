"""Memory that the ranks of one host map into each other: each reads all ranks' segments by address."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import torch

from plait.peer.arena import Arena, Segment, lay_out
from plait.peer.errors import PeersCannotMapError
from plait.peer.handles import meet
from plait.peer.pads import FIRST_EPOCH, MOST_RANKS, PAD_BYTES
from plait.peer.processes import PeerProcess, Peers, own_pidfd
from plait.peer.region import Allocation, Region, Space
from plait.peer.terms import Answer, Member, Offer


class PeerMemory(Protocol):
    """See `MappedMemory`, which is the one there is."""

    rank: int
    ranks: int
    device: torch.device
    stride: int

    def own(self, segment: str) -> torch.Tensor:
        """uint8 [nbytes], this rank's."""

    def of(self, rank: int, segment: str) -> torch.Tensor:
        """uint8 [nbytes], `rank`'s."""

    def spanning(self, segment: str) -> torch.Tensor:
        """uint8 [(ranks - 1) * stride + nbytes], all ranks'."""

    def close(self) -> None:
        """Unmap."""


class MappedMemory:
    """Segments of all ranks, side by side in one address range on this rank.

    stride: bytes from one rank's segment to the next one's. peers: the other ranks' processes.
    pads: small memory of each rank that all may write, for barriers. Other ranks' segments are to be READ
    only; where the device can enforce it (`peers_read_only`) a write faults.
    HAZARD: every tensor of it dangles after `close`. The own memory lives on until all ranks have closed, so
    that no rank reads freed memory; work of this rank that still runs on the device is waited for.
    """

    def __init__(
        self, *, rank: int, ranks: int, arena: Arena, space: Space, pool: Region, pads: Region, peers: Peers
    ) -> None:
        self.rank, self.ranks, self.device = rank, ranks, space.device
        self.stride = arena.stride
        self.arena, self.pool, self.pads, self.peers = arena, pool, pads, peers
        self._closed = False
        # Runs at the latest when the interpreter exits.
        self._release = weakref.finalize(self, _release, pool, pads, space, peers)

    def own(self, segment: str) -> torch.Tensor:
        """uint8 [nbytes], this rank's. Raises KeyError for an unknown segment."""
        return self.of(self.rank, segment)

    def of(self, rank: int, segment: str) -> torch.Tensor:
        """uint8 [nbytes], `rank`'s; to be read only unless it is this rank's. Raises KeyError for an unknown
        segment, IndexError for a rank outside the group."""
        if not 0 <= rank < self.ranks:
            raise IndexError(f"rank is {rank}, of {self.ranks} ranks")
        place = self.arena.places[segment]
        return self._tensor(rank * self.stride + place.offset, place.nbytes)

    def spanning(self, segment: str) -> torch.Tensor:
        """uint8 [(ranks - 1) * stride + nbytes]: rank r's segment begins at byte `r * stride`. Raises
        KeyError for an unknown segment.

        HAZARD: between the segments lies what must not be touched: other segments, and holes without memory.
        Only index it; never copy, fill, print or reduce it as a whole.
        """
        place = self.arena.places[segment]
        return self._tensor(place.offset, (self.ranks - 1) * self.stride + place.nbytes)

    @property
    def peers_read_only(self) -> bool:
        """Whether a stray write to another rank's segment faults (else it would corrupt)."""
        return bool(getattr(self.pool, "peers_read_only", False))

    def close(self) -> None:
        """Unmap, and drop this rank's hold on all memory. Can be called again."""
        self._closed = True
        self._release()

    def _tensor(self, offset: int, nbytes: int) -> torch.Tensor:
        if self._closed:
            raise RuntimeError("the peer memory is closed")
        return self.pool.tensor(offset, nbytes)


def open_peer_memory(
    segments: Sequence[Segment],
    *,
    rank: int,
    ranks: int,
    device: torch.device,
    folder: Path,
    unit_bytes: Sequence[int],
    timeout_s: float,
    group: str = "plait",
) -> MappedMemory:
    """Allocate `segments` (zeroed) on `device`, and map them with those of the other ranks of this host.

    Every rank of the group calls it with the same segments and units, within `timeout_s` of each other.
    folder: private to the group's ranks and their user; made with mode 0700. unit_bytes: `stride` becomes a
    multiple of each (page bytes). group: a name that tells this group from others in the same folder.
    device: a CUDA device with its index, or the CPU (shared memory of the host).

    Raises PeersCannotMapError, on all ranks or on none, with the reason of the rank that could not; nothing
    is left allocated then. Raises ValueError for arguments that no rank could use.
    """
    if ranks > MOST_RANKS:
        raise PeersCannotMapError(f"{ranks} ranks: the pads of barriers have words for {MOST_RANKS}")
    with meet(folder, me=Member(group, rank, ranks), timeout_s=timeout_s) as meeting, ExitStack() as undo:
        space = _space(device)
        undo.callback(space.close)
        arena = lay_out(segments, ranks=ranks, granularity=space.granularity, unit_bytes=unit_bytes)
        pad_bytes = -(-PAD_BYTES // space.granularity) * space.granularity
        with ExitStack() as brought:
            pool_own, pads_own = (
                _brought(brought, space.allocate(nbytes, name=f"{group} {name} of rank {rank}"))
                for nbytes, name in ((arena.size, "pool"), (pad_bytes, "pads"))
            )
            pidfd = own_pidfd()
            fds = [pool_own.fd, pads_own.fd]
            if pidfd is not None:
                brought.callback(os.close, pidfd)
                fds.append(pidfd)
            answers = meeting.exchange(Offer(f"{space.kind}.{arena.digest}", space.note(), tuple(fds)))
            space.check([answer.note for answer in answers])
            pool = space.map(
                pool_own, _column(answers, 0), rank=rank, stride=arena.stride, name="pool", writable=False
            )
            undo.callback(pool.close)
            pads = space.map(
                pads_own, _column(answers, 1), rank=rank, stride=pad_bytes, name="pads", writable=True
            )
            undo.callback(pads.close)
            space.fill(pads, rank=rank, nbytes=pad_bytes, word=FIRST_EPOCH)
            peers = Peers(
                PeerProcess(a.rank, a.pid, a.fds[2] if len(a.fds) > 2 else None)
                for a in answers
                if a.rank != rank
            )
            undo.callback(peers.close)
        meeting.commit()
        undo.pop_all()
    return MappedMemory(rank=rank, ranks=ranks, arena=arena, space=space, pool=pool, pads=pads, peers=peers)


def _space(device: torch.device) -> Space:
    if device.type == "cuda":
        from plait.peer.cuda_memory import CudaSpace  # only here: it loads the CUDA bindings

        return CudaSpace(device)
    if device.type == "cpu":
        from plait.peer.host_memory import HostSpace

        return HostSpace()
    raise PeersCannotMapError(f"memory of a {device.type} device cannot be mapped by other processes")


def _brought(stack: ExitStack, allocation: Allocation) -> Allocation:
    stack.callback(allocation.close)
    return allocation


def _column(answers: Sequence[Answer], index: int) -> list[int]:
    return [answer.fds[index] for answer in answers]


def _release(pool: Region, pads: Region, space: Space, peers: Peers) -> None:
    for part in (pool, pads, space, peers):
        part.close()
