"""Where the engine hands out, caches, splits and frees pages: `plait.engine.host_pages` is told of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from plait.contract.layouts import PAGE_SIZE
from plait.engine import state
from plait.engine.allocator import Expected
from plait.engine.host_pages import ROW, annotate, pages_of, path_pages, prefix_pages
from plait.engine.install import implements
from plait.layout import Int64Array

_TAIL_PAGES = 1024
"""Pages of a sequence's end that the allocator looks at, so that each lane's run goes on where it ended."""


@implements("mem_cache.allocation.alloc_for_extend")
def alloc_for_extend(original: Callable[..., Any], batch: Any) -> Any:
    """Tell the allocator what is known of each request, and note the rows that come of it."""
    allocator = state.allocator
    if allocator is None:
        return original(batch)
    prefixes = [prefix_pages(req) for req in batch.reqs]
    allocator.expect(
        [
            Expected(None if prefix is None else prefix[-_TAIL_PAGES:], growth(req))
            for prefix, req in zip(prefixes, batch.reqs, strict=True)
        ]
    )
    result = original(batch)
    taken = allocator.handed_out()
    rows = [
        np.concatenate([prefix, new]) if prefix is not None else None
        for prefix, new in zip(prefixes, taken, strict=True)
    ]
    for req, row in zip(batch.reqs, rows, strict=True):
        setattr(req, ROW, row)
    allocator.host_pages.formed([req.rid for req in batch.reqs], rows)
    return result


def growth(req: Any) -> int:
    """Pages that `req`'s prompt wants after this chunk."""
    end = req.extend_range.end
    return int(max(0, -(-len(req.full_untruncated_fill_ids) // PAGE_SIZE) - -(-end // PAGE_SIZE)))


@implements("mem_cache.radix_cache.RadixCache.insert")
def insert(result: Any, self: Any, params: Any) -> None:
    """A new leaf holds the end of the row that was put in. Nodes that were there keep their own pages."""
    key_length = len(params.key) // PAGE_SIZE * PAGE_SIZE
    leaf = result.last_device_node
    if state.allocator is None or leaf is None or result.prefix_len >= key_length:
        return
    annotate(leaf.value, state.allocator.host_pages.inserted(result.prefix_len, key_length))


@implements("mem_cache.radix_cache.RadixCache._split_node")
def split_node(original: Callable[..., Any], self: Any, key: Any, child: Any, split_len: int) -> Any:
    pages = pages_of(child.value)
    front = original(self, key, child, split_len)
    if pages is not None and split_len % PAGE_SIZE == 0:
        annotate(front.value, pages[: split_len // PAGE_SIZE])
        annotate(child.value, pages[split_len // PAGE_SIZE :])
    return front


@implements("mem_cache.radix_cache.RadixCache.cache_unfinished_req")
def cache_unfinished_req(original: Callable[..., Any], self: Any, req: Any, chunked: bool = False) -> Any:
    """The tree takes the row's whole pages, or has them already; then the row is the tree's path."""
    row: Int64Array | None = getattr(req, ROW, None)
    with _handling(row, self):
        result = original(self, req, chunked=chunked)
    if row is not None and not self.disable:
        path = path_pages(req.last_node)
        setattr(req, ROW, None if path is None else np.concatenate([path, row[len(path) :]]))
    return result


@implements("mem_cache.radix_cache.RadixCache.cache_finished_req")
def cache_finished_req(original: Callable[..., Any], self: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
    with _handling(getattr(req, ROW, None), self):
        result = original(self, req, *args, **kwargs)
    setattr(req, ROW, None)
    return result


@contextmanager
def _handling(row: Int64Array | None, tree: Any) -> Iterator[None]:
    """Inside, what of the request table is put into `tree` or freed is of the request with `row`."""
    if state.allocator is None:
        yield
        return
    known = state.allocator.host_pages
    known.handle(row, tree.req_to_token_pool.req_to_token)
    try:
        yield
    finally:
        known.handle(None, None)
