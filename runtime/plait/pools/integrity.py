"""Page accounting of one group: every page is free, or held by the radix tree, a request or a transfer.

Pure arithmetic over page ids; the engine room collects who holds what.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from plait.layout import Geometry, Int64Array
from plait.layout.pages import listed


class Holder(NamedTuple):
    """Who holds pages: a request, with its pages in sequence order (pages of the tree among them)."""

    name: str
    pages: Int64Array


class PageAccount(NamedTuple):
    """Sums of an account, in pages, and what is wrong with it in words (empty: nothing)."""

    free: int
    tree: int
    requests: int
    faults: tuple[str, ...]


def account(
    geometry: Geometry,
    free: npt.NDArray[np.bool_],
    *,
    tree: Sequence[Int64Array],
    requests: Sequence[Holder],
) -> PageAccount:
    """Check that free pages, tree pages and request pages make up the pool, each page once.

    free: bool [pages + N] by page id. tree: pages of each node; a page belongs to one node. requests: live
    requests (computing or in transfer); they share the tree's pages, but no other request's own ones.
    """
    faults: list[str] = []
    size = geometry.end_page
    if len(free) != size:
        raise ValueError(f"free has {len(free)} entries: the pool has ids up to {size - 1}")
    outside = np.concatenate([_outside(p, size) for p in (*tree, *(h.pages for h in requests))] or [_NONE])
    if len(outside):
        # Said as a fault, and left out below: an index error here would end the engine without a word.
        faults.append(f"pages {listed(np.unique(outside))} are held, but ids run from 0 to {size - 1}")
        tree = [_inside(pages, size) for pages in tree]
        requests = [Holder(h.name, _inside(h.pages, size)) for h in requests]
    in_tree = _counts(tree, size)
    if (in_tree > 1).any():
        faults.append(f"pages {listed(np.flatnonzero(in_tree > 1))} stand in more than one tree node")
    own = [Holder(h.name, h.pages[in_tree[h.pages] == 0]) for h in requests]
    in_requests = _counts([h.pages for h in own], size)
    if (in_requests > 1).any():
        twice = np.flatnonzero(in_requests > 1)
        names = [h.name for h in own if np.isin(h.pages, twice).any()]
        faults.append(f"pages {listed(twice)} are written by more than one request: {', '.join(names[:4])}")
    if free[: geometry.first_page].any():
        faults.append(
            f"reserved pages {listed(np.flatnonzero(free[: geometry.first_page]))} are free to take"
        )
    held = (in_tree > 0) | (in_requests > 0)
    if held[: geometry.first_page].any():
        faults.append(f"reserved pages {listed(np.flatnonzero(held[: geometry.first_page]))} are held")
    if (held & free).any():
        faults.append(f"pages {listed(np.flatnonzero(held & free))} are free and held at once")
    lost = ~held & ~free
    lost[: geometry.first_page] = False
    if lost.any():
        faults.append(f"pages {listed(np.flatnonzero(lost))} are neither free nor held by anyone")
    return PageAccount(
        free=int(free.sum()),
        tree=int((in_tree > 0).sum()),
        requests=int((in_requests > 0).sum()),
        faults=tuple(faults),
    )


_NONE: Int64Array = np.empty(0, dtype=np.int64)


def _outside(pages: Int64Array, size: int) -> Int64Array:
    return pages[(pages < 0) | (pages >= size)]


def _inside(pages: Int64Array, size: int) -> Int64Array:
    return pages[(pages >= 0) & (pages < size)]


def _counts(lists: Sequence[Int64Array], size: int) -> Int64Array:
    if not lists:
        return np.zeros(size, dtype=np.int64)
    return np.bincount(np.concatenate(lists), minlength=size)
