"""Copy runs of one sequence: what the copy engine can move with one strided command.

A run is a stretch of one owner's pages that are consecutive in its pool and whose positions in the sequence
(the dense view, in pages) have a constant stride: source contiguous, destination pitched. Pages that form
only short runs (fragments) are better left to a kernel that reads page ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from plait.layout.pages import Int64Array, listed


class FragmentCount(NamedTuple):
    """Runs below some length, and the pages in them."""

    runs: int
    pages: int


@dataclass(frozen=True)
class CopyRuns:
    """All runs of a sequence, ordered by owner, then by position; np.int64 [runs] each.

    Run i moves `count[i]` pages from physical page `physical[i]` on of rank `owner[i]` to the positions
    `position[i] + stride[i] * k` (pages from the start of the sequence). stride of a one-page run is 1.
    """

    ranks: int
    owner: Int64Array
    physical: Int64Array
    position: Int64Array
    count: Int64Array
    stride: Int64Array

    def __len__(self) -> int:
        return len(self.owner)

    @property
    def pages(self) -> int:
        """Pages of the sequence."""
        return int(self.count.sum())

    @property
    def mean_length(self) -> float:
        """Pages per run; 0.0 for an empty sequence."""
        return self.pages / len(self) if len(self) else 0.0

    def fragment_mask(self, *, below: int) -> npt.NDArray[np.bool_]:
        """True for runs of fewer than `below` pages, bool [runs]."""
        return self.count < below

    def fragments(self, *, below: int) -> FragmentCount:
        """How many runs are shorter than `below` pages, and how many pages they hold."""
        mask = self.fragment_mask(below=below)
        return FragmentCount(runs=int(mask.sum()), pages=int(self.count[mask].sum()))

    def expand(self) -> Int64Array:
        """The logical page ids again, in sequence order, np.int64 [pages]."""
        nth = np.arange(self.pages, dtype=np.int64)
        nth -= np.repeat(np.cumsum(self.count) - self.count, self.count)
        position = np.repeat(self.position, self.count) + nth * np.repeat(self.stride, self.count)
        physical = np.repeat(self.physical, self.count) + nth
        pages = np.empty(self.pages, dtype=np.int64)
        pages[position] = physical * self.ranks + np.repeat(self.owner, self.count)
        return pages


def copy_runs(pages: Int64Array, ranks: int) -> CopyRuns:
    """Runs of a sequence whose logical page ids, in order, are `pages` (np.int64 [n], n may be 0).

    Each run is as long as it can be from its first page on. ValueError if a page is reserved.
    """
    reserved = pages[pages < ranks]
    if len(reserved):
        raise ValueError(f"pages holds {listed(reserved)}: ids below {ranks} are the reserved stripe")
    owners = pages % ranks
    position = np.argsort(owners, kind="stable").astype(np.int64, copy=False)
    owners = owners[position]
    physical = pages[position] // ranks
    if not len(pages):
        return CopyRuns(ranks, owners, physical, position, position, position)

    # Link i joins page i to page i + 1 of this order. It is broken where the pool is not consecutive, and
    # where the stride differs from the stride that the run has so far.
    strides = np.diff(position)
    joined = (np.diff(owners) == 0) & (np.diff(physical) == 1)
    broken = ~joined | _stride_breaks(strides, joined)
    first = np.concatenate([[0], np.flatnonzero(broken) + 1]).astype(np.int64)
    count = np.diff(np.append(first, len(pages)))
    stride = np.ones(len(first), dtype=np.int64)
    several = count > 1
    stride[several] = strides[first[several]]
    return CopyRuns(ranks, owners[first], physical[first], position[first], count, stride)


def _stride_breaks(strides: Int64Array, joined: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Links that a greedy walk breaks because the stride changes there, bool [links].

    A broken link sets no stride, so the link after it never breaks. The rule without the walk: cut the links
    into blocks of equal stride (each unjoined link a block of its own). The first link of a block is broken
    if the last link of the block before was kept. That is always so when that block has two links or more;
    the only link of a shorter one is kept unless it was broken itself, so chains of such blocks alternate.
    """
    links = len(strides)
    if not links:
        return np.zeros(0, dtype=np.bool_)
    starts_block = np.ones(links, dtype=np.bool_)
    starts_block[1:] = (strides[1:] != strides[:-1]) | ~joined[1:] | ~joined[:-1]
    first = np.flatnonzero(starts_block)
    size = np.diff(np.append(first, links))
    after_gap = np.ones(len(first), dtype=np.bool_)  # nothing kept before: the block starts a run freely
    after_gap[1:] = ~joined[first[1:] - 1]
    after_long = np.zeros(len(first), dtype=np.bool_)  # the link before was surely kept
    after_long[1:] = (size[:-1] > 1) & ~after_gap[1:]
    index = np.arange(len(first))
    anchor = np.maximum.accumulate(np.where(after_gap | after_long, index, 0))
    breaks = after_long[anchor] ^ ((index - anchor) % 2 == 1)
    broken = np.zeros(links, dtype=np.bool_)
    broken[first] = breaks & joined[first]
    return broken


def mean_run_length(pages: Int64Array, ranks: int) -> float:
    """Mean length, in pages, of the stretches of consecutive physical pages per owner: the allocator's mark.

    Unlike `CopyRuns.mean_length` it ignores where in the sequence the pages stand. 0.0 without pages.
    """
    if not len(pages):
        return 0.0
    order = np.argsort(pages % ranks, kind="stable")
    ordered = pages[order]
    return len(pages) / (1 + int(np.count_nonzero(np.diff(ordered) != ranks)))
