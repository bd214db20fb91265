"""One part of a dense view, fetched from all owners: the seam that every way of gathering fits in.

`Exchange.prepare` does once per batch what depends on the plan alone; the `Fetch` that it returns is launched
in each layer, and the `Pending` that a launch returns is waited for once. Here also the way through
collectives (all-gather of regular blocks), for ranks that cannot map each other's memory.
HAZARD: collectives of one group must be launched in the same order on all ranks. The order follows from
plan and layer, which are equal on all ranks; nothing that a rank sees alone may decide it.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist

from plait.gather.plan import PartPlan
from plait.gather.upload import uploaded


class PartIndex(NamedTuple):
    """A part as one rank sees it: what an exchange prepares from.

    trash: dense page that received padding is put on. device: of this rank's pools and scratch.
    """

    plan: PartPlan
    rank: int
    trash: int
    device: torch.device


class Pending(Protocol):
    """A part on its way."""

    def done(self) -> bool:
        """Whether `wait` would return, or let the device go on, at once. Never waits itself."""

    def wait(self) -> None:
        """What is launched on the current stream from now on sees the part's pages. Called exactly once."""


class Fetch(Protocol):
    """A part of the current batch, ready to be fetched in any layer."""

    def launch(self, source: torch.Tensor, target: torch.Tensor) -> Pending:
        """Fetch the part into `target` (uint8 [dense pages + 1, page bytes], the last one trash).

        source: uint8 [physical pages, page bytes], this rank's own pool of the layer. Every rank launches
        every part, also one of which it owns no page. Reads and writes are ordered after what was launched
        on the current stream before, so whoever read `target` last has done so.
        """


class Exchange(Protocol):
    """A way of fetching parts."""

    def prepare(self, part: PartIndex) -> Fetch:
        """Once per batch and part: everything that no layer changes. A `Fetch` lives as long as its batch."""


class Landed:
    """A part that is there: it came on the current stream, or on the host."""

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        return


LANDED = Landed()


class CollectiveExchange:
    """All-gather over a process group of this group's ranks, in rank order. Bytes are moved, never summed."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._ranks = dist.get_world_size(group)

    def prepare(self, part: PartIndex) -> Fetch:
        return _CollectiveFetch(self._group, self._ranks, part)


class _CollectiveFetch:
    """send: int64 [block] own physical pages. place: int64 [N * block] dense pages (padding: trash)."""

    def __init__(self, group: dist.ProcessGroup, ranks: int, part: PartIndex) -> None:
        self._group = group
        self._received = ranks * part.plan.block
        self.send, self.place = uploaded(
            part.plan.send[part.rank], part.plan.placed(part.trash), device=part.device
        )

    def launch(self, source: torch.Tensor, target: torch.Tensor) -> Pending:
        packed = source.index_select(0, self.send)
        received = torch.empty((self._received, source.shape[1]), dtype=torch.uint8, device=source.device)
        work = dist.all_gather_into_tensor(received, packed, group=self._group, async_op=True)
        return _Gathering(work, packed, received, self.place, target)


class _Gathering:
    """An all-gather under way. Holds its buffers: the collective reads and writes them until it is done."""

    def __init__(
        self,
        work: dist.Work,
        packed: torch.Tensor,
        received: torch.Tensor,
        place: torch.Tensor,
        target: torch.Tensor,
    ) -> None:
        self._work, self._packed, self._received = work, packed, received
        self._place, self._target = place, target

    def done(self) -> bool:
        return self._work.is_completed()

    def wait(self) -> None:
        self._work.wait()
        self._target.index_copy_(0, self._place, self._received)
