"""Which lane (owner rank) each new page of a sequence is asked of: the allocator's preference.

A preference is all that a split is (whoever owns a page computes it), so it may be overruled: `settle` moves
pages whose preferred lane is empty to lanes that have pages left, and an allocation never fails while pages
are free anywhere. Everything here is a pure function of arguments that are equal on all ranks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from plait.layout.pages import Int64Array


class Settled(NamedTuple):
    """lanes: np.int64 [count], one per page; off_lane: how many of them are not on their preferred lane."""

    lanes: Int64Array
    off_lane: int


def fullest_first(available: Int64Array) -> Int64Array:
    """Lanes ordered by free pages, most first, ties to the lower lane; np.int64 [N]."""
    return np.argsort(-available, kind="stable")


def interleave(count: int, *, last_lane: int | None, available: Int64Array) -> Int64Array:
    """Page-interleave: each page on the lane after the last page's; np.int64 [count].

    A new sequence (`last_lane` None) starts on the lane with most free pages, ties to the lower lane.
    available: free pages per lane, np.int64 [N].
    """
    ranks = len(available)
    first = int(available.argmax()) if last_lane is None else last_lane + 1
    return (np.arange(count, dtype=np.int64) + first) % ranks


def zigzag(count: int, *, available: Int64Array) -> Int64Array:
    """Page-zigzag: `count` pages cut into 2N contiguous segments, segment j on rank j or 2N-1-j; [count].

    Every segment has `count div 2N` pages and the `count mod 2N` extra pages make some segments a page
    longer: first one of each rank's early segments (j < N), then of the late ones, in both rounds the ranks
    with most free pages first (ties to the lower rank). So ranks differ by at most a page whatever the
    count, and short demands (fewer pages than 2N: some segments are empty) do not always burden rank 0: on
    a balanced pool the first `count` segments get the pages, otherwise those whose ranks have most room.
    """
    ranks = len(available)
    base, extra = divmod(count, 2 * ranks)
    sizes = np.full(2 * ranks, base, dtype=np.int64)
    if extra:
        order = fullest_first(available)
        sizes[order[:extra]] += 1
        if extra > ranks:
            sizes[2 * ranks - 1 - order[: extra - ranks]] += 1
    rank_of_segment = np.concatenate([np.arange(ranks), np.arange(ranks)[::-1]])
    return np.repeat(rank_of_segment, sizes)


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix64(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """splitmix64 of each value: a fixed, platform-independent scrambling of 64 bits."""
    with np.errstate(over="ignore"):
        mixed = values + _GOLDEN
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def scattered(count: int, *, ranks: int, seed: int, drawn: int) -> Int64Array:
    """Test switch: a pseudo-random lane per page, np.int64 [count], the same on every rank.

    drawn: pages drawn with this seed before; page i of the demand is draw `drawn + i`.
    """
    draws = np.arange(drawn, drawn + count, dtype=np.uint64)
    salt = mix64(np.array([seed & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64))
    return (mix64(draws ^ salt) % np.uint64(ranks)).astype(np.int64)


def settle(preferred: Int64Array, available: Int64Array) -> Settled:
    """Replace preferences that the lanes cannot serve; needs `len(preferred) <= available.sum()`.

    Each lane serves its first pages of the demand as far as it goes. The pages beyond are taken, one after
    the other, from the lane that has most free pages left (ties to the lower lane).
    """
    ranks = len(available)
    asked = np.bincount(preferred, minlength=ranks)
    excess = asked - available
    if not (excess > 0).any():
        return Settled(preferred, 0)
    displaced = np.zeros(len(preferred), dtype=np.bool_)
    for lane in np.flatnonzero(excess > 0):
        of_lane = np.flatnonzero(preferred == lane)
        displaced[of_lane[int(available[lane]) :]] = True
    off_lane = int(displaced.sum())
    left = np.maximum(-excess, 0)
    # Taking from the fullest lane again and again visits (pages left, lane) in falling order of pages left.
    offers = np.minimum(left, off_lane)
    lane_of_offer = np.repeat(np.arange(ranks, dtype=np.int64), offers)
    nth = np.arange(int(offers.sum()), dtype=np.int64) - np.repeat(np.cumsum(offers) - offers, offers)
    order = np.argsort(nth - left[lane_of_offer], kind="stable")[:off_lane]
    lanes = preferred.copy()
    lanes[displaced] = lane_of_offer[order]
    return Settled(lanes, off_lane)
