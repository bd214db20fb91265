"""A small scheduler over the engine's own radix tree and Plait's allocator: who holds which page, on the
device (the request table, the tree's values) and on the host."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from plait.contract.layouts import PAGE_SIZE
from plait.engine import state


class Request:
    """What the hooks and the tree read of the engine's request."""

    def __init__(self, rid: str, tokens: list[int], slot: int) -> None:
        self.rid, self.tokens, self.req_pool_idx = rid, tokens, slot
        self.origin_input_ids = array("q", tokens)
        self.full_untruncated_fill_ids = self.origin_input_ids
        self.output_ids = array("q")
        self.extra_key = None
        self.prefix_indices = torch.empty(0, dtype=torch.int64)
        self.last_node: Any = None
        self.cache_protected_len = 0
        self.extend_range = SimpleNamespace(start=0, end=0)

    def get_fill_ids(self) -> array[int]:
        return self.origin_input_ids[: self.extend_range.end]

    @property
    def complete(self) -> bool:
        return self.extend_range.end == len(self.tokens)


class World:
    """One rank's scheduler. `hooks` are put on the tree's class by `wrap` (the engine's own wrapper)."""

    def __init__(self, allocator: Any, *, chunk: int, longest: int, requests: int) -> None:
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.radix_cache import RadixCache

        self.allocator, self.chunk = allocator, chunk
        self.table = torch.zeros(requests + 1, longest, dtype=torch.int32)
        pool = SimpleNamespace(req_to_token=self.table, write=self._write)
        self.free_slots = list(range(1, requests + 1))
        self.tree = RadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=pool,
                token_to_kv_pool_allocator=allocator,
                page_size=PAGE_SIZE,
            )
        )
        self.live: list[Request] = []

    def _write(self, where: Any, values: torch.Tensor) -> None:
        self.table[where] = values.to(torch.int32)

    def arrive(self, rid: str, tokens: list[int]) -> Request:
        req = Request(rid, tokens, self.free_slots.pop())
        self.live.append(req)
        return req

    def match(self, req: Request) -> None:
        """Look the prompt up, but for its last token, and lock what was found."""
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
        from sglang.srt.mem_cache.radix_cache import RadixKey

        found = self.tree.match_prefix(
            MatchPrefixParams(key=RadixKey(array("q", req.tokens[: len(req.tokens) - 1])))
        )
        req.prefix_indices, req.last_node = found.device_indices, found.last_device_node
        req.cache_protected_len = len(req.prefix_indices)
        self.tree.inc_lock_ref(req.last_node)

    def form(self, reqs: list[Request]) -> SimpleNamespace | None:
        """Give the next chunk of each request its pages; None if there is no room for all."""
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        from plait.engine import page_hooks

        for req in reqs:
            start = len(req.prefix_indices)
            req.extend_range = SimpleNamespace(start=start, end=min(len(req.tokens), start + self.chunk))
        prefixes = torch.tensor([req.extend_range.start for req in reqs])
        lengths = torch.tensor([req.extend_range.end for req in reqs])
        wanted = int((lengths - prefixes).sum()) + len(reqs) * PAGE_SIZE
        if wanted > self.allocator.available_size() + self.tree.evictable_size():
            return None

        def original(batch: Any) -> torch.Tensor:
            short = wanted - self.allocator.available_size()
            if short > 0:
                self.tree.evict(EvictParams(num_tokens=short))
            last = [int(req.prefix_indices[-1]) if len(req.prefix_indices) else -1 for req in reqs]
            slots: torch.Tensor = self.allocator.alloc_extend(
                prefixes, prefixes, lengths, lengths, torch.tensor(last), int((lengths - prefixes).sum())
            )
            first = 0
            for req in reqs:
                start, end = req.extend_range.start, req.extend_range.end
                self.table[req.req_pool_idx] = -PAGE_SIZE  # what an earlier request left must not be read
                self._write((req.req_pool_idx, slice(0, start)), req.prefix_indices)
                self._write((req.req_pool_idx, slice(start, end)), slots[first : first + end - start])
                first += end - start
            return slots

        page_hooks.alloc_for_extend(original, SimpleNamespace(reqs=reqs))
        return SimpleNamespace(
            rids=[req.rid for req in reqs],
            req_pool_indices=torch.tensor([req.req_pool_idx for req in reqs], dtype=torch.int32),
            lengths=lengths.tolist(),
        )

    def forward(self, batch: SimpleNamespace, patch: Any) -> None:
        """Ask for the batch's pages as the strategy does, and compare with the table."""
        from sglang.srt.model_executor import forward_context

        from plait.engine import strategy

        patch.setattr(
            forward_context, "get_req_to_token_pool", lambda: SimpleNamespace(req_to_token=self.table)
        )
        found = strategy.sequence_pages(batch, batch.lengths)
        for ours, slot, length in zip(found, batch.req_pool_indices.tolist(), batch.lengths, strict=True):
            assert ours.tolist() == (self.table[slot, :length:PAGE_SIZE] // PAGE_SIZE).tolist()

    def cache(self, req: Request) -> None:
        self.tree.cache_unfinished_req(req, chunked=not req.complete)

    def finish(self, req: Request, *, insert: bool) -> None:
        """The request ends (sent, or aborted): the tree keeps its pages, or they are freed."""
        self.tree.cache_finished_req(req, is_insert=insert, kv_len_to_handle=req.extend_range.end)
        self.live.remove(req)
        self.free_slots.append(req.req_pool_idx)

    def check(self) -> None:
        """Every id that the host has is the device's, and every page is free or held once."""
        held = []
        stack = list(self.tree.root_node.children.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            there = (node.value[::PAGE_SIZE] // PAGE_SIZE).tolist()
            assert node.value.plait_pages.tolist() == there
            held += there
        for req in self.live:
            end = req.extend_range.end
            row = getattr(req, "plait_row", None)
            if row is None:
                assert end == 0
                continue
            there = (self.table[req.req_pool_idx, :end:PAGE_SIZE] // PAGE_SIZE).tolist()
            assert row.tolist() == there
            held += there[req.cache_protected_len // PAGE_SIZE :]
        pages = self.allocator.pages
        free = np.flatnonzero(pages.free_mask()).tolist()
        every = range(self.allocator.geometry.first_page, self.allocator.geometry.end_page)
        assert sorted(held + free) == list(every)


def hooked(patch: Any) -> None:
    """Put the tree's hooks on, by the engine's own wrapper."""
    from sglang.srt.mem_cache.radix_cache import RadixCache
    from sglang.srt.plugins.hook_registry import HookType, _wrap_fn

    from plait.engine import page_hooks

    around, after = HookType.AROUND, HookType.AFTER
    for name, hook, kind in (
        ("insert", page_hooks.insert, after),
        ("_split_node", page_hooks.split_node, around),
        ("cache_unfinished_req", page_hooks.cache_unfinished_req, around),
        ("cache_finished_req", page_hooks.cache_finished_req, around),
    ):
        patch.setattr(RadixCache, name, _wrap_fn(getattr(RadixCache, name), hook, kind))


def counted_copies(patch: Any) -> Callable[[], int]:
    """How often page ids were copied from the device, by the allocator or the strategy."""
    from plait.engine import strategy
    from plait.engine.allocator import OwnedPageAllocator

    copies = 0
    release, read = OwnedPageAllocator._release_page_ids, strategy._device_pages

    def released(self: Any, *ids: torch.Tensor) -> None:
        nonlocal copies
        copies += 1
        release(self, *ids)

    def copied(batch: Any, lengths: list[int]) -> Any:
        nonlocal copies
        copies += not state.settings.debug_checks
        return read(batch, lengths)

    patch.setattr(OwnedPageAllocator, "_release_page_ids", released)
    patch.setattr(strategy, "_device_pages", copied)
    return lambda: copies
