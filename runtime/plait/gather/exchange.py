"""One part of a dense view, fetched from all owners: the seam that every way of gathering fits in.

`Exchange.launch` starts it and returns a `Pending`; `Pending.wait` finishes it. Here through collectives
(all-gather of regular blocks): each rank packs the pages it owns, receives all blocks, and places them.
HAZARD: collectives of one group must be launched in the same order on all ranks. The order follows from
plan and layer, which are equal on all ranks; nothing that a rank sees alone may decide it.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.distributed as dist

from plait.gather.plan import PartPlan


class PartIndex:
    """A `PartPlan` on the device of one rank: built once per batch, used by all layers.

    send: int64 [block] own physical pages. place: int64 [N * block] dense pages (padding: `trash`).
    """

    __slots__ = ("block", "pages", "place", "remote_pages", "send")

    def __init__(self, part: PartPlan, *, rank: int, trash: int, device: torch.device) -> None:
        self.block = part.block
        self.pages = part.pages
        self.remote_pages = part.remote_pages(rank)
        self.send = torch.from_numpy(part.send[rank].copy()).to(device, non_blocking=True)
        self.place = torch.from_numpy(part.placed(trash)).to(device, non_blocking=True)


class Pending(Protocol):
    """A part on its way."""

    def done(self) -> bool:
        """Whether `wait` would return at once."""

    def wait(self) -> None:
        """Return once the part's pages are in the dense view. Called exactly once."""


class Exchange(Protocol):
    """A way of fetching a part."""

    def launch(self, part: PartIndex, source: torch.Tensor, target: torch.Tensor) -> Pending:
        """Fetch `part` from the owners' `source` (uint8 [physical pages, bytes]) into `target`
        (uint8 [dense pages + 1, bytes], the last one trash)."""


class CollectiveExchange:
    """All-gather over a process group of this group's ranks, in rank order."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._ranks = dist.get_world_size(group)

    def launch(self, part: PartIndex, source: torch.Tensor, target: torch.Tensor) -> Pending:
        width = source.shape[1]
        packed = source.index_select(0, part.send)
        received = torch.empty((self._ranks * part.block, width), dtype=torch.uint8, device=source.device)
        work = dist.all_gather_into_tensor(received, packed, group=self._group, async_op=True)
        return _Gathering(work, packed, received, part, target)


class _Gathering:
    """An all-gather under way. Holds its buffers: the collective reads and writes them until it is done."""

    def __init__(
        self,
        work: dist.Work,
        packed: torch.Tensor,
        received: torch.Tensor,
        part: PartIndex,
        target: torch.Tensor,
    ) -> None:
        self._work, self._packed, self._received = work, packed, received
        self._part, self._target = part, target

    def done(self) -> bool:
        return self._work.is_completed()

    def wait(self) -> None:
        self._work.wait()
        self._target.index_copy_(0, self._part.place, self._received)
