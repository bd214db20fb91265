"""Host-side page allocator: every rank of the group runs it in lockstep and gets equal answers.

It lives on the host so that the owners of new pages, and with them the split, are known without a device
sync. It is deterministic: equal calls in equal order give equal pages on all ranks, and `fingerprint` lets
the ranks compare that they did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from plait.contract.layouts import Split
from plait.layout import lanes
from plait.layout.free_runs import FreeRuns
from plait.layout.pages import Geometry, Int64Array, listed

_MASK64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True, eq=False)
class PageDemand:
    """New pages that one sequence of a batch asks for.

    count: new pages, at least 0 (0 when the new tokens still fit the last page).
    last_page: the sequence's last existing page (logical id), None for a new sequence.
    first_index: index of the first new page in the sequence, 0 exactly for a new sequence.
    growth: pages that the sequence is known to want after these (the later chunks of a prompt); 0 if these
        are the last, None if unknown. A hint: it only decides how well later pages join these.
    tail: the sequence's existing pages in order, as many of the last as are at hand (it ends with
        `last_page`), so that each lane's run goes on where it ended; None: only `last_page`'s lane does.
    """

    count: int
    last_page: int | None = None
    first_index: int = 0
    growth: int | None = None
    tail: Int64Array | None = None


class AllocatorSnapshot(NamedTuple):
    """State to go back to with `PageAllocator.restore`; opaque."""

    geometry: Geometry
    free: npt.NDArray[np.bool_]
    drawn: int
    history: int
    freed: int


class PageAllocator:
    """Free pages of the whole group, one bitmap per lane (owner rank).

    geometry: ranks and usable pages. split: lane preference. random_owners: seed of the test switch that
    gives every page a pseudo-random lane instead; None is off.
    """

    def __init__(self, geometry: Geometry, *, split: Split, random_owners: int | None = None) -> None:
        self.geometry = geometry
        self.split = Split(split)
        self.random_owners = random_owners
        #: Pages handed out on another lane than the preferred one, since construction; never falls.
        self.off_lane = 0
        self._codes = lanes.mix64(np.arange(geometry.end_page, dtype=np.uint64))
        self._free = np.zeros((geometry.ranks, geometry.physical_pages), dtype=np.bool_)
        self._runs = [FreeRuns(row) for row in self._free]
        self.clear()

    def clear(self) -> None:
        """All pages free again, as at construction (the `off_lane` counter stays)."""
        self._free[:, 1:] = True  # physical page 0 of every lane is the reserved stripe
        self._drawn = 0
        self._history = 0
        self._freed = 0
        self._recount()

    @property
    def available(self) -> int:
        """Free pages over all lanes."""
        return self._available

    @property
    def available_per_lane(self) -> Int64Array:
        """Free pages of each lane, np.int64 [N]; a copy."""
        return self._per_lane.copy()

    def free_mask(self) -> npt.NDArray[np.bool_]:
        """True for every free logical page, bool [pages + N] by page id (the reserved ones are False)."""
        return self._free.T.reshape(-1).copy()

    def take(self, requests: Sequence[PageDemand]) -> list[Int64Array] | None:
        """Pages for every demand of a batch, in sequence order: np.int64 [count] logical ids each.

        None, with nothing changed, exactly if the demands together exceed `available`. Demands are served in
        order. Raises ValueError, with nothing changed, on a demand that contradicts itself or this pool.
        """
        for index, demand in enumerate(requests):
            self._check_demand(index, demand)
        if sum(demand.count for demand in requests) > self._available:
            return None
        return [self._take_one(demand) for demand in requests]

    def free(self, pages: npt.ArrayLike) -> None:
        """Give back logical `pages` (1-D integers, any order).

        Raises ValueError naming the pages, with nothing changed, if any is reserved, out of range, already
        free or given twice.
        """
        ids = self.geometry.check(pages, field="pages to free")
        if not len(ids):
            return
        ranks = self.geometry.ranks
        lane, row = ids % ranks, ids // ranks
        already = self._free[lane, row]
        if already.any():
            raise ValueError(f"pages to free holds pages {listed(ids[already])} that are free already")
        self._free[lane, row] = True
        given = np.bincount(lane, minlength=ranks)
        touched = np.flatnonzero(given).tolist()
        if any(self._count(index) != self._per_lane[index] + given[index] for index in touched):
            # Fewer bits were set than pages given: some page came twice. Undo before saying so.
            self._free[lane, row] = False
            unique, times = np.unique(ids, return_counts=True)
            raise ValueError(f"pages to free holds pages {listed(unique[times > 1])} more than once")
        self._per_lane += given
        self._available += len(ids)
        for index in touched:
            self._runs[index].forget()
        self._freed ^= int(np.bitwise_xor.reduce(self._codes[ids]))

    def snapshot(self) -> AllocatorSnapshot:
        """The state now, to `restore` later."""
        return AllocatorSnapshot(self.geometry, self._free.copy(), self._drawn, self._history, self._freed)

    def restore(self, snapshot: AllocatorSnapshot) -> None:
        """Go back to `snapshot` (the `off_lane` counter stays); ValueError if it is another pool's."""
        if snapshot.geometry != self.geometry:
            raise ValueError(
                f"snapshot.geometry is {snapshot.geometry}: it must be this allocator's, {self.geometry}"
            )
        self._free[:] = snapshot.free
        self._drawn, self._history, self._freed = snapshot.drawn, snapshot.history, snapshot.freed
        self._recount()

    def fingerprint(self) -> int:
        """64 bits that are equal on ranks whose allocators agree: O(1).

        It covers what was handed out since the last `clear`, in order (two ranks that gave the same pages to
        different requests differ), and which pages came back, in whatever order. Since a page can only be
        freed as often as it was taken, that fixes the free set too.
        """
        return self._freed ^ self._history

    def _count(self, lane: int) -> int:
        return int(np.count_nonzero(self._free[lane]))

    def _recount(self) -> None:
        self._per_lane = np.array([self._count(lane) for lane in range(self.geometry.ranks)], dtype=np.int64)
        self._available = int(self._per_lane.sum())
        for runs in self._runs:
            runs.forget()

    def _check_demand(self, index: int, demand: PageDemand) -> None:
        field = f"requests[{index}]"
        if demand.count < 0:
            raise ValueError(f"{field}.count is {demand.count}: give the number of new pages, at least 0")
        if demand.growth is not None and demand.growth < 0:
            raise ValueError(f"{field}.growth is {demand.growth}: give pages to come, at least 0, or None")
        if demand.last_page is None:
            if demand.first_index or (demand.tail is not None and len(demand.tail)):
                raise ValueError(
                    f"{field}.last_page is None with first_index {demand.first_index}: a sequence that has "
                    f"pages must name its last one"
                )
            return
        last = demand.last_page
        if demand.first_index < 1:
            raise ValueError(
                f"{field}.first_index is {demand.first_index} with last_page {last}: a sequence that has a "
                f"page has its next one at index 1 or later"
            )
        if not self.geometry.first_page <= last < self.geometry.end_page:
            raise ValueError(
                f"{field}.last_page is {last}: usable ids run from {self.geometry.first_page} to "
                f"{self.geometry.end_page - 1}"
            )
        if self._free[last % self.geometry.ranks, last // self.geometry.ranks]:
            raise ValueError(f"{field}.last_page is {last}, a free page: it was released too early")
        if demand.tail is not None:
            self._check_tail(field, demand.tail, last)

    def _check_tail(self, field: str, tail: Int64Array, last: int) -> None:
        ids = self.geometry.check(tail, field=f"{field}.tail")
        if not len(ids) or int(ids[-1]) != last:
            end = int(ids[-1]) if len(ids) else "empty"
            raise ValueError(f"{field}.tail ends with {end}: it must end with last_page, {last}")
        released = self._free[ids % self.geometry.ranks, ids // self.geometry.ranks]
        if released.any():
            raise ValueError(f"{field}.tail holds free pages {listed(ids[released])}: released too early")

    def _take_one(self, demand: PageDemand) -> Int64Array:
        count, ranks = demand.count, self.geometry.ranks
        pages = np.empty(count, dtype=np.int64)
        if not count:
            return pages
        lane_of_page, off_lane = lanes.settle(self._preferred(demand), self._per_lane)
        self.off_lane += off_lane
        growth = None if demand.growth is None else -(-demand.growth // ranks)
        after = self._last_rows(demand)
        taken = np.bincount(lane_of_page, minlength=ranks)
        for lane in np.flatnonzero(taken).tolist():
            rows = self._runs[lane].take(int(taken[lane]), after=after.get(lane), growth=growth)
            pages[lane_of_page == lane] = rows * ranks + lane
        self._per_lane -= taken
        self._available -= count
        self._drawn += count
        # The factors make the sum depend on the pages' order, the multiplier on the order of takes.
        ordered = int((self._codes[pages] * np.arange(1, 2 * count, 2, dtype=np.uint64)).sum(dtype=np.uint64))
        self._history = (self._history * 0xD1342543DE82EF95 + ordered + 1) & _MASK64
        return pages

    def _preferred(self, demand: PageDemand) -> Int64Array:
        ranks = self.geometry.ranks
        if self.random_owners is not None:
            return lanes.scattered(demand.count, ranks=ranks, seed=self.random_owners, drawn=self._drawn)
        if self.split is Split.PAGE_ZIGZAG:
            return lanes.zigzag(demand.count, available=self._per_lane)
        last_lane = None if demand.last_page is None else demand.last_page % ranks
        return lanes.interleave(demand.count, last_lane=last_lane, available=self._per_lane)

    def _last_rows(self, demand: PageDemand) -> dict[int, int]:
        """The sequence's last physical page in each lane, as far as the demand tells."""
        ranks = self.geometry.ranks
        if demand.last_page is None:
            return {}
        if demand.tail is None:
            return {demand.last_page % ranks: demand.last_page // ranks}
        last = np.full(ranks, -1, dtype=np.int64)
        last[demand.tail % ranks] = demand.tail // ranks  # of equal indices, the last assignment stands
        return {lane: row for lane, row in enumerate(last.tolist()) if row >= 0}
