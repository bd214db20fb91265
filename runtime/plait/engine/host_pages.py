"""Page ids on the host, beside the engine's device tensors that hold slots.

The engine keeps a sequence's slots on the device only: in its request table, and as values of the radix
tree's nodes. Who needs page ids on the host (the split, the gather's runs, the allocator) would copy them
back, and the host would wait for the device. But every id was handed out by the host, so it is kept:

- a node's value carries the ids of its pages (`annotate`): from the request that put it in; a split node's
  parts carry their parts;
- a request carries the ids of its row (`ROW`): those of its cached prefix, which are the path to its last
  node, and those that it was given. The tree may keep its own pages in place of equal ones of the request;
  after that the row is the path again, and the request's pages beyond it.

An id says what a tensor object holds. A value that the engine makes in another way has no ids, and who asks
is told None and copies from the device: the two ways give equal ids and launch no collective, so that ranks
need not even choose alike (they do: they schedule in lockstep). PLAIT_DEBUG_CHECKS compares with the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from plait.contract.layouts import PAGE_SIZE
from plait.layout import Int64Array

ROW = "plait_row"
"""Attribute of the engine's request: np.int64, page ids of its row in the request table, or None."""
_PAGES = "plait_pages"


class HostPages:
    """What this process's scheduler knows on the host. Used by the scheduler's thread alone.

    hits, misses: requests whose pages were known when asked for, and those that were not.
    """

    def __init__(self) -> None:
        self.hits = self.misses = 0
        self._formed: tuple[list[str], list[Int64Array | None]] = ([], [])
        self._row: Int64Array | None = None
        self._table: int = 0

    def formed(self, rids: list[str], rows: list[Int64Array | None]) -> None:
        """A batch was formed: its requests' ids and rows, in its order. It is the next one that runs."""
        self._formed = (rids, rows)

    def of_batch(self, rids: Sequence[str] | None, lengths: Sequence[int]) -> list[Int64Array] | None:
        """Pages of each request of the batch that runs now, np.int64 [ceil(length / 64)].

        None if any request's are unknown, or if this is not the batch that was formed last. A batch asks
        once: after it has run, the tree may keep other pages in place of its own.
        """
        (formed, rows), self._formed = self._formed, ([], [])
        found = [
            row
            for row, length in zip(rows, lengths, strict=False)
            if row is not None and len(row) == -(-length // PAGE_SIZE)
        ]
        if rids is None or list(rids) != formed or not len(found) == len(rows) == len(lengths):
            self.misses += len(lengths)
            return None
        self.hits += len(lengths)
        return found

    def handle(self, row: Int64Array | None, table: torch.Tensor | None) -> None:
        """From now on slots of `table` (the request table) that are put into the tree or freed are `row`'s;
        None: of nobody that is known."""
        self._row = row
        self._table = 0 if table is None else table.untyped_storage().data_ptr()

    def inserted(self, start: int, end: int) -> Int64Array | None:
        """Pages of tokens `start` to `end` of the row that is being put into the tree, whole pages."""
        row = self._row
        if row is None or start % PAGE_SIZE or -(-end // PAGE_SIZE) > len(row):
            return None
        return row[start // PAGE_SIZE : -(-end // PAGE_SIZE)]

    def freed(self, slots: torch.Tensor, start: int) -> Int64Array | None:
        """Pages of `slots` that begin at token `start` of a row or of a node; None if unknown."""
        known = pages_of(slots)
        if known is not None:
            return known if start == 0 and len(known) == -(-len(slots) // PAGE_SIZE) else None
        row = self._row
        if row is None or slots.untyped_storage().data_ptr() != self._table:
            return None
        last = -(-(start + len(slots)) // PAGE_SIZE)
        return row[start // PAGE_SIZE : last] if last <= len(row) else None


def annotate(value: Any, pages: Int64Array | None) -> None:
    """Note that tensor `value` holds the slots of whole `pages`, in order."""
    if pages is not None and isinstance(value, torch.Tensor) and len(value) == len(pages) * PAGE_SIZE:
        setattr(value, _PAGES, pages)


def pages_of(value: Any) -> Int64Array | None:
    """Pages noted for tensor `value`, or None."""
    pages: Int64Array | None = getattr(value, _PAGES, None)
    return pages


def path_pages(node: Any) -> Int64Array | None:
    """Pages of the tree from its root to `node`, in sequence order; None if any node's are unknown."""
    parts: list[Int64Array] = []
    while node is not None and node.parent is not None:
        pages = pages_of(node.value)
        if pages is None:
            return None
        parts.append(pages)
        node = node.parent
    return np.concatenate(parts[::-1]) if parts else np.zeros(0, dtype=np.int64)


def prefix_pages(req: Any) -> Int64Array | None:
    """Pages of the cached tokens with which `req` enters a batch; None if unknown."""
    tokens = len(req.prefix_indices)
    if tokens == 0:
        return np.zeros(0, dtype=np.int64)
    if tokens % PAGE_SIZE:
        return None
    count = tokens // PAGE_SIZE
    if req.last_node is not None:
        path = path_pages(req.last_node)
        return path if path is not None and len(path) == count else None
    # Without a tree a prefix is the request's own earlier chunks.
    row: Int64Array | None = getattr(req, ROW, None)
    return row[:count] if row is not None and len(row) >= count else None
