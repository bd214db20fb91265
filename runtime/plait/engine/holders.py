"""Who holds pages in a scheduler: its radix tree, and its live requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from plait.contract.layouts import PAGE_SIZE
from plait.layout import Int64Array
from plait.pools import Holder


def tree_pages(tree_cache: Any) -> list[Int64Array]:
    """Pages of each node of the radix tree (none for an engine without one)."""
    root = getattr(tree_cache, "root_node", None)
    if root is None:
        return []
    slots = []
    stack = list(root.children.values())
    while stack:
        node = stack.pop()
        stack.extend(node.children.values())
        if node.value is not None and len(node.value):
            slots.append(node.value[::PAGE_SIZE])
    if not slots:
        return []
    # One copy from the device for the whole tree: a node's value is a tensor of its own.
    pages = torch.cat(slots).cpu().numpy().astype(np.int64) // PAGE_SIZE
    return np.split(pages, np.cumsum([len(one) for one in slots])[:-1])


def live_requests(scheduler: Any) -> Iterator[Any]:
    """Requests that hold pages of their own: computing, or finished and in transfer."""
    seen: set[int] = set()
    chunked = [scheduler.chunked_req] if scheduler.chunked_req is not None else []
    running = list(scheduler.running_batch.reqs)
    last = list(scheduler.last_batch.reqs) if scheduler.last_batch is not None else []
    for req in (*in_flight(scheduler), *chunked, *running, *last):
        if id(req) not in seen and req.req_pool_idx is not None and req.kv is not None:
            seen.add(id(req))
            yield req


def in_flight(scheduler: Any) -> list[Any]:
    """Requests whose pages are being sent."""
    return list(getattr(scheduler, "disagg_prefill_inflight_queue", None) or ())


def request_pages(scheduler: Any) -> list[Holder]:
    """Pages of every live request, in sequence order."""
    table = scheduler.req_to_token_pool.req_to_token
    holders = []
    for req in live_requests(scheduler):
        slots = table[req.req_pool_idx, : req.kv.kv_allocated_len]
        holders.append(Holder(str(req.rid), _pages(slots)))
    return holders


def _pages(slots: Any) -> Int64Array:
    pages: Int64Array = slots[::PAGE_SIZE].cpu().numpy().astype(np.int64) // PAGE_SIZE
    return pages
