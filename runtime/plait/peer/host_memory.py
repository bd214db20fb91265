"""Shared memory of the host: memfd, mapped side by side. For machines without a GPU."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from collections.abc import Sequence

import torch

from plait.peer import host_map
from plait.peer.errors import PeersCannotMapError
from plait.peer.region import Allocation, Region
from plait.peer.terms import Note

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""On every memfd: one that shrank under a mapping would end its readers by SIGBUS."""


class HostAllocation:
    """See `plait.peer.region.Allocation`."""

    def __init__(self, nbytes: int, *, name: str) -> None:
        self.nbytes = nbytes
        self.fd = os.memfd_create(name[:60], os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, nbytes)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


class HostRegion:
    """See `plait.peer.region.Region`."""

    peers_read_only: bool

    def __init__(self, fds: Sequence[int], *, nbytes: int, rank: int, stride: int, writable: bool) -> None:
        self.stride = stride
        self.peers_read_only = not writable
        self._span = (len(fds) - 1) * stride + nbytes
        self.base = host_map.reserve(self._span)
        try:
            for index, fd in enumerate(fds):
                host_map.map_at(self.base + index * stride, nbytes, fd, writable=writable or index == rank)
        except OSError:
            self.close()
            raise

    def tensor(self, offset: int, nbytes: int) -> torch.Tensor:
        if not nbytes:
            return torch.empty(0, dtype=torch.uint8)
        buffer = (ctypes.c_uint8 * nbytes).from_address(self.base + offset)
        return torch.frombuffer(buffer, dtype=torch.uint8)

    def close(self) -> None:
        span, self._span = self._span, 0
        if span:
            host_map.unmap(self.base, span)


class HostSpace:
    """See `plait.peer.region.Space`."""

    def __init__(self) -> None:
        self.kind = "host"
        self.granularity = mmap.PAGESIZE
        self.device = torch.device("cpu")

    def note(self) -> Note:
        return {}

    def check(self, notes: Sequence[Note]) -> None:
        """Nothing to check: whoever came to the meeting is on this host."""

    def allocate(self, nbytes: int, *, name: str) -> HostAllocation:
        try:
            return HostAllocation(nbytes, name=name)
        except OSError as error:
            raise PeersCannotMapError(f"no shared memory of {nbytes} bytes: {error.strerror}") from error

    def map(
        self, own: Allocation, fds: Sequence[int], *, rank: int, stride: int, name: str, writable: bool
    ) -> HostRegion:
        for index, fd in enumerate(fds):
            size = os.fstat(fd).st_size
            if size != own.nbytes or fcntl.fcntl(fd, fcntl.F_GET_SEALS) != _SEALS:
                raise PeersCannotMapError(
                    f"the {name} of rank {index} has {size} bytes, not {own.nbytes}, or no seals"
                )
        try:
            return HostRegion(fds, nbytes=own.nbytes, rank=rank, stride=stride, writable=writable)
        except OSError as error:
            raise PeersCannotMapError(
                f"cannot map the {name} of {len(fds)} ranks: {error.strerror}"
            ) from error

    def fill(self, region: Region, *, rank: int, nbytes: int, word: int) -> None:
        region.tensor(rank * region.stride, nbytes).view(torch.int32).fill_(word)

    def close(self) -> None:
        """Nothing is held."""
