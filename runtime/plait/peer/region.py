"""One allocation of each rank, mapped side by side: what the kinds of memory (CUDA, host) have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from plait.peer.terms import Note


class Region(Protocol):
    """The ranks' allocations in one address range; rank r's begins at `base + r * stride`.

    HAZARD: `close` takes the memory away under the tensors that were made of it.
    """

    base: int
    stride: int

    def tensor(self, offset: int, nbytes: int) -> torch.Tensor:
        """uint8 [nbytes] from byte `offset` of the range on. No copy."""

    def close(self) -> None:
        """Unmap, and give the address range back. Can be called again."""


class Allocation(Protocol):
    """One rank's own memory, zeroed, before it is mapped. fd: the descriptor that the others map it by."""

    fd: int
    nbytes: int

    def close(self) -> None:
        """Close the descriptor and drop this hold on the memory; a mapping keeps it. Can be called again."""


class Space(Protocol):
    """Where memory comes from: one kind of device.

    kind: in words, equal on all ranks. granularity: bytes that an allocation is a multiple of.
    """

    kind: str
    granularity: int
    device: torch.device

    def note(self) -> Note:
        """What the others have to know of this rank's device."""

    def check(self, notes: Sequence[Note]) -> None:
        """Raise PeersCannotMapError if, by the notes, this rank cannot map the memory of one of them."""

    def allocate(self, nbytes: int, *, name: str) -> Allocation:
        """Memory of this rank. Raises PeersCannotMapError if there is none."""

    def map(
        self, own: Allocation, fds: Sequence[int], *, rank: int, stride: int, name: str, writable: bool
    ) -> Region:
        """Map the allocations behind `fds` (by rank, all as large as `own`) side by side. Others' memory is
        mapped to be read only unless `writable`, where the device can tell the two apart. Raises
        PeersCannotMapError, with nothing left mapped."""

    def fill(self, region: Region, *, rank: int, nbytes: int, word: int) -> None:
        """Fill this rank's first `nbytes` of a region with the 32-bit `word`; done on return."""

    def close(self) -> None:
        """Give back what the kind itself holds, after all regions are closed. Can be called again."""
