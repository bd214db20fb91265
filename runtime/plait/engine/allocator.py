"""The engine's page allocator over `plait.layout.PageAllocator`: owners are chosen when pages are.

Stock callers keep their interface (token slots on the device, `available_size` exact: the engine's idle
check ends the process otherwise). What they get are Plait's pages: ids from N on, all lanes counted as one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator

from plait.contract.layouts import PAGE_SIZE
from plait.contract.setting_kinds import Owners
from plait.engine import state
from plait.engine.host_pages import HostPages
from plait.engine.install import IMPLEMENTATIONS
from plait.gather.upload import uploaded
from plait.layout import Geometry, Int64Array, PageAllocator, PageDemand
from plait.layout.pages import listed

_RANDOM_OWNERS_SEED = 20261130


class Expected(NamedTuple):
    """A request that will ask for pages. tail: its sequence's last pages, None if the host does not know
    them. growth: pages that it is known to want later, None if unknown."""

    tail: Int64Array | None
    growth: int | None


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
        self.host_pages = HostPages()
        self._expected: list[Expected] | None = None
        self._taken: list[Int64Array] | None = None
        super().__init__(size, page_size, dtype, device, kvcache, need_sort)
        state.allocator = self

    def expect(self, requests: list[Expected]) -> None:
        """Tell what the host knows of the requests of the `alloc_extend` that follows, in its order."""
        self._expected, self._taken = requests, None

    def handed_out(self) -> list[Int64Array]:
        """New pages of each request of that `alloc_extend`, np.int64. Once."""
        taken, self._expected, self._taken = self._taken, None, None
        if taken is None:
            raise RuntimeError("a batch was formed for which no pages were asked")
        return taken

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
        self._free_host_group: list[Int64Array] = []

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
        told = self._expected if self._expected is not None else [Expected(None, None)] * len(prefixes)
        # The copy of `last_loc` makes the host wait for the device: only where the host does not know.
        unknown = any(prefix and one.tail is None for prefix, one in zip(prefixes, told, strict=True))
        last_there = (last_loc.cpu().numpy() // PAGE_SIZE).tolist() if unknown else [None] * len(prefixes)
        demands = [
            PageDemand(
                count=-(-length // PAGE_SIZE) - prefix // PAGE_SIZE,
                last_page=_last(prefix, one.tail, last),
                first_index=prefix // PAGE_SIZE,
                growth=one.growth,
                tail=one.tail if prefix else None,
            )
            for prefix, length, last, one in zip(prefixes, lengths, last_there, told, strict=True)
        ]
        self._taken = taken = self._pages.take(demands)
        if taken is None:
            return None
        slots = [
            _slots(pages)[: length - prefix]
            for pages, prefix, length in zip(taken, prefixes, lengths, strict=True)
        ]
        return self._uploaded(np.concatenate(slots))

    def alloc_decode(self, *_: Any, **__: Any) -> torch.Tensor | None:
        raise NotImplementedError(
            "a context-parallel prefill group does not decode; send requests through a prefill -> decode pair"
        )

    def free_segment(self, free_index: torch.Tensor, *, start_pos: int) -> None:
        """Without a copy from the device where the host knows the pages."""
        pages = self.host_pages.freed(free_index, start_pos) if len(free_index) else None
        if pages is None:
            super().free_segment(free_index, start_pos=start_pos)
            return
        if state.settings.debug_checks:
            _compare(pages, free_index, start_pos)
        if self.is_not_in_free_group:
            self._pages.free(pages)
        else:
            self._free_host_group.append(pages)

    def free_group_begin(self) -> None:
        super().free_group_begin()
        self._free_host_group = []

    def free_group_end(self) -> None:
        super().free_group_end()
        if self._free_host_group:
            self._pages.free(np.concatenate(self._free_host_group))
            self._free_host_group = []

    def _release_page_ids(self, *page_ids: torch.Tensor) -> None:
        self._pages.free(torch.cat(page_ids).cpu().numpy())

    def _slots(self, pages: Int64Array) -> torch.Tensor:
        return self._uploaded(_slots(pages))

    def _uploaded(self, slots: Int64Array) -> torch.Tensor:
        return uploaded(slots, device=torch.device(self.device))[0]


def _last(prefix: int, tail: Int64Array | None, last: int | None) -> int | None:
    """Last page of a sequence with `prefix` tokens: the host's, else the device's; None for a new one."""
    if not prefix:
        return None
    return last if tail is None else int(tail[-1])


def _compare(pages: Int64Array, slots: torch.Tensor, start: int) -> None:
    """Stop unless the host's `pages` are those of `slots`, which begin at token `start` (debug checks)."""
    there = slots.cpu().numpy() // PAGE_SIZE
    first = np.flatnonzero(np.diff(np.arange(start, start + len(there)) // PAGE_SIZE, prepend=-1))
    if not np.array_equal(there[first], pages):
        raise RuntimeError(
            f"the host takes freed pages for {listed(pages)}, the device has {listed(there[first])}"
        )


def _slots(pages: Int64Array) -> Int64Array:
    """Token slots of whole pages, np.int64 [len(pages) * 64]."""
    return (pages[:, None] * PAGE_SIZE + np.arange(PAGE_SIZE)).reshape(-1)


IMPLEMENTATIONS["sglang.srt.mem_cache.kv_cache_configurator.PagedTokenToKVPoolAllocator"] = OwnedPageAllocator
