"""The engine's page allocator over `plait.layout.PageAllocator`: owners are chosen when pages are.

Stock callers keep their interface (token slots on the device, `available_size` exact: the engine's idle
check ends the process otherwise). What they get are Plait's pages: ids from N on, all lanes counted as one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator

from plait.contract.layouts import PAGE_SIZE
from plait.contract.setting_kinds import Owners
from plait.engine import state
from plait.engine.install import IMPLEMENTATIONS
from plait.layout import Geometry, Int64Array, PageAllocator, PageDemand

_RANDOM_OWNERS_SEED = 20261130


class OwnedPageAllocator(PagedTokenToKVPoolAllocator):  # type: ignore[misc]
    """Pages on the host (numpy), in lockstep on all ranks: equal calls in equal order give equal owners."""

    def __init__(
        self, size: int, page_size: int, dtype: torch.dtype, device: str, kvcache: Any, need_sort: bool
    ) -> None:
        if page_size != PAGE_SIZE:
            raise ValueError(f"page_size is {page_size}: the shared layout has pages of {PAGE_SIZE} tokens")
        self._geometry = Geometry(ranks=state.group().ranks, pages=size // PAGE_SIZE)
        self._pages = PageAllocator(
            self._geometry,
            split=state.settings.split,
            random_owners=_RANDOM_OWNERS_SEED if state.settings.test_owners is Owners.RANDOM else None,
        )
        super().__init__(size, page_size, dtype, device, kvcache, need_sort)
        state.allocator = self

    # The stock checker reads these lists when it has found a leak, to say which pages.
    @property
    def free_pages(self) -> torch.Tensor:
        return torch.from_numpy(np.flatnonzero(self._pages.free_mask()))

    @free_pages.setter
    def free_pages(self, _: object) -> None: ...

    @property
    def release_pages(self) -> torch.Tensor:
        return torch.empty(0, dtype=torch.int64)

    @release_pages.setter
    def release_pages(self, _: object) -> None: ...

    @property
    def pages(self) -> PageAllocator:
        """The host-side allocator."""
        return self._pages

    @property
    def geometry(self) -> Geometry:
        """Ranks and pages of the pool."""
        return self._geometry

    def available_size(self) -> int:
        return self._pages.available * PAGE_SIZE

    def clear(self) -> None:
        self._pages.clear()
        self.is_not_in_free_group = True
        self.free_group: list[torch.Tensor] = []
        self.free_page_reps_group: list[torch.Tensor] = []

    def merge_and_sort_free(self) -> None:
        """Nothing to merge: freed pages are free at once, and runs are found when pages are taken."""

    def resize(self, config: Any) -> None:
        raise NotImplementedError(
            "the shared layout cannot be resized while serving; restart the engine with another "
            "--max-total-tokens"
        )

    def alloc(self, need_size: int) -> torch.Tensor | None:
        if need_size % PAGE_SIZE:
            raise ValueError(f"need_size is {need_size}: pages have {PAGE_SIZE} tokens")
        taken = self._pages.take([PageDemand(count=need_size // PAGE_SIZE)])
        return None if taken is None else self._slots(taken[0])

    def alloc_extend(
        self,
        prefix_lens: torch.Tensor,
        prefix_lens_cpu: torch.Tensor,
        seq_lens: torch.Tensor,
        seq_lens_cpu: torch.Tensor,
        last_loc: torch.Tensor,
        extend_num_tokens: int,
        num_new_pages: int | None = None,
    ) -> torch.Tensor | None:
        """Slots of the batch's new tokens, int64 [extend_num_tokens], or None if pages do not suffice."""
        prefixes, lengths = prefix_lens_cpu.tolist(), seq_lens_cpu.tolist()
        if any(prefix % PAGE_SIZE for prefix in prefixes):
            raise ValueError(
                f"prefix lengths {prefixes} are not whole pages of {PAGE_SIZE} tokens: cached prefixes and "
                "chunks must end on page boundaries"
            )
        last_pages = (last_loc.cpu().numpy() // PAGE_SIZE).tolist()
        demands = [
            PageDemand(
                count=-(-length // PAGE_SIZE) - prefix // PAGE_SIZE,
                last_page=last if prefix else None,
                first_index=prefix // PAGE_SIZE,
            )
            for prefix, length, last in zip(prefixes, lengths, last_pages, strict=True)
        ]
        taken = self._pages.take(demands)
        if taken is None:
            return None
        slots = [
            _slots(pages)[: length - prefix]
            for pages, prefix, length in zip(taken, prefixes, lengths, strict=True)
        ]
        return torch.from_numpy(np.concatenate(slots)).to(self.device, non_blocking=True)

    def alloc_decode(self, *_: Any, **__: Any) -> torch.Tensor | None:
        raise NotImplementedError(
            "a context-parallel prefill group does not decode; send requests through a prefill -> decode pair"
        )

    def _release_page_ids(self, *page_ids: torch.Tensor) -> None:
        self._pages.free(np.concatenate([ids.cpu().numpy() for ids in page_ids]))

    def _slots(self, pages: Int64Array) -> torch.Tensor:
        return torch.from_numpy(_slots(pages)).to(self.device, non_blocking=True)


def _slots(pages: Int64Array) -> Int64Array:
    """Token slots of whole pages, np.int64 [len(pages) * 64]."""
    return (pages[:, None] * PAGE_SIZE + np.arange(PAGE_SIZE)).reshape(-1)


IMPLEMENTATIONS["sglang.srt.mem_cache.kv_cache_configurator.PagedTokenToKVPoolAllocator"] = OwnedPageAllocator
