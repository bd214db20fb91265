"""The copy plan of a part: long runs for the copy engine, the rest by page list for the kernel. Pure.

One 2D copy moves one run: a stretch of one owner's pool onto dense pages at a constant pitch. It costs the
host a call and the engine a start, whatever it moves, so a run must be worth it. Everything is decided from
the part alone, which is equal on all ranks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from plait.layout import Int64Array, copy_runs, logical

MOST_PITCH = 2**31 - 1
"""Bytes. CUDA refuses a 2D copy of a greater pitch."""


class RunLimits(NamedTuple):
    """What makes a run worth a copy of its own.

    least_bytes: a run that moves less is left to the kernel. most_runs: copies per layer and kind that the
    host may spend its time on; the longest runs are chosen.
    """

    least_bytes: int
    most_runs: int


class Runs(NamedTuple):
    """All runs of a part, np.int64 [runs] each, ordered by owner, then by place.

    Run i moves `length[i]` pages from page `physical[i]` on of rank `owner[i]`'s pool to the dense pages
    `place[i] + stride[i] * k`.
    """

    owner: Int64Array
    physical: Int64Array
    place: Int64Array
    length: Int64Array
    stride: Int64Array

    @property
    def pages(self) -> int:
        """Pages of all runs."""
        return int(self.length.sum())

    def only(self, chosen: npt.NDArray[np.bool_]) -> Runs:
        """The runs that `chosen` (bool [runs]) names."""
        return Runs(*(column[chosen] for column in self))


class PageList(NamedTuple):
    """Pages one by one, np.int64 [pages] each: page `physical[i]` of rank `owner[i]` to dense `place[i]`."""

    owner: Int64Array
    physical: Int64Array
    place: Int64Array


class CopyPlan(NamedTuple):
    """A part, divided: `runs` by the copy engine, `fragments` by the kernel. Every page is in one of them."""

    runs: Runs
    fragments: PageList


def runs_of(pages: PageList, *, ranks: int) -> Runs:
    """The runs of pages in dense order. Raises ValueError if one is a reserved page."""
    found = copy_runs(logical(pages.owner, pages.physical, ranks), ranks)
    runs = Runs(found.owner, found.physical, found.position, found.count, found.stride)
    if not len(pages.place):
        return runs
    # These are runs of the part's own positions. The dense pages of a part have gaps where the other part
    # stands; a run ends there.
    start, nth = _each_page(runs)
    position = runs.place[start] + nth * runs.stride[start]
    gap = pages.place[position] - position
    begins = nth == 0
    begins[1:] |= gap[1:] != gap[:-1]
    first = np.flatnonzero(begins)
    length = np.diff(np.append(first, len(begins)))
    of = start[first]
    return Runs(
        owner=runs.owner[of],
        physical=runs.physical[of] + nth[first],
        place=pages.place[position[first]],
        length=length,
        stride=np.where(length > 1, runs.stride[of], 1),
    )


def divide(runs: Runs, *, page_bytes: int, limits: RunLimits) -> CopyPlan:
    """Which runs are copied and which pages are pulled, for pages of `page_bytes`."""
    worth = (runs.length * page_bytes >= limits.least_bytes) & (runs.stride * page_bytes <= MOST_PITCH)
    if int(worth.sum()) > limits.most_runs:
        longest = np.argsort(np.where(worth, -runs.length, 1), kind="stable")[: limits.most_runs]
        worth = np.zeros_like(worth)
        worth[longest] = True
    return CopyPlan(runs.only(worth), _listed(runs.only(~worth)))


def _listed(runs: Runs) -> PageList:
    """The pages of `runs`, in dense order (owners mixed, so that a kernel reads from all of them at once)."""
    of, nth = _each_page(runs)
    place = runs.place[of] + nth * runs.stride[of]
    order = np.argsort(place)
    return PageList(runs.owner[of][order], (runs.physical[of] + nth)[order], place[order])


def _each_page(runs: Runs) -> tuple[Int64Array, Int64Array]:
    """For each page of `runs`, in their order: its run, and its number in it."""
    of = np.repeat(np.arange(len(runs.length), dtype=np.int64), runs.length)
    before = np.cumsum(runs.length) - runs.length
    return of, np.arange(len(of), dtype=np.int64) - before[of]
