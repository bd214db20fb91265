"""The engine's allocator over Plait's: the stock interface, page for page, with owners chosen on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.engine.conftest import Place

from plait.contract.layouts import PAGE_SIZE, Layout, Split
from plait.contract.setting_kinds import Owners
from plait.contract.settings import Settings
from plait.engine import state

pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.timeout(600)]
PAGES = 24


@pytest.fixture
def make(place: Place) -> Callable[..., Any]:
    def build(ranks: int = 2, pages: int = PAGES, **chosen: object) -> Any:
        from plait.engine.allocator import OwnedPageAllocator

        place.settings(layout=Layout.SHARED, **chosen)
        place.at(0, ranks)
        return OwnedPageAllocator(pages * PAGE_SIZE, PAGE_SIZE, torch.bfloat16, "cpu", "pool", True)

    return build


def extend(allocator: Any, prefixes: list[int], lengths: list[int], last: list[int]) -> torch.Tensor | None:
    """`alloc_extend` as the scheduler calls it."""
    before, after = torch.tensor(prefixes), torch.tensor(lengths)
    found: torch.Tensor | None = allocator.alloc_extend(
        before, before, after, after, torch.tensor(last), sum(lengths) - sum(prefixes)
    )
    return found


def pages_of(slots: torch.Tensor) -> list[int]:
    return (slots[::PAGE_SIZE] // PAGE_SIZE).tolist()


def test_it_says_that_it_is_the_pools_allocator(make: Callable[..., Any]) -> None:
    allocator = make()
    assert state.allocator is allocator
    assert allocator.get_kvcache() == "pool"
    assert allocator.size == PAGES * PAGE_SIZE
    assert allocator.available_size() == PAGES * PAGE_SIZE
    assert (allocator.geometry.ranks, allocator.geometry.pages) == (2, PAGES)
    assert allocator.free_pages.tolist() == list(range(2, PAGES + 2))
    assert len(allocator.release_pages) == 0


def test_slots_of_a_new_sequence_are_whole_pages_in_order_with_a_partial_last(
    make: Callable[..., Any],
) -> None:
    allocator = make()
    slots = extend(allocator, [0], [130], [-1])
    assert slots is not None
    assert slots.dtype == torch.int64
    pages = pages_of(slots)
    expected = [page * PAGE_SIZE + row for page in pages for row in range(PAGE_SIZE)][:130]
    assert slots.tolist() == expected
    assert sorted(page % 2 for page in pages) == [0, 0, 1]
    assert allocator.available_size() == (PAGES - 3) * PAGE_SIZE


def test_a_chunk_goes_on_after_the_last_page(make: Callable[..., Any]) -> None:
    allocator = make()
    first = extend(allocator, [0], [128], [-1])
    assert first is not None
    second = extend(allocator, [128], [300], [int(first[-1])])
    assert second is not None
    owners = [page % 2 for page in pages_of(first) + pages_of(second)]
    assert owners == [owners[0], 1 - owners[0]] * 2 + [owners[0]]


def test_a_batch_is_concatenated_in_request_order(make: Callable[..., Any]) -> None:
    allocator = make(ranks=4)
    slots = extend(allocator, [0, 0, 0], [1, 65, 64], [-1, -1, -1])
    assert slots is not None
    assert len(slots) == 130
    one, two, three = slots[:1], slots[1:66], slots[66:]
    pages = [*pages_of(one), *pages_of(two), *pages_of(three)]
    assert len(set(pages)) == 4
    assert (slots % PAGE_SIZE).tolist() == [0, *range(64), 0, *range(64)]


def test_nothing_is_taken_when_pages_do_not_suffice(make: Callable[..., Any]) -> None:
    allocator = make(pages=4)
    assert extend(allocator, [0, 0], [129, 65], [-1, -1]) is None
    assert allocator.available_size() == 4 * PAGE_SIZE
    assert allocator.alloc(5 * PAGE_SIZE) is None
    assert allocator.alloc(4 * PAGE_SIZE) is not None
    assert allocator.available_size() == 0


def test_a_skewed_pool_is_no_failure_while_a_page_is_free_anywhere(make: Callable[..., Any]) -> None:
    allocator = make(pages=8)
    everything = allocator.alloc(8 * PAGE_SIZE)
    odd = everything[(everything // PAGE_SIZE) % 2 == 1]
    allocator.free(odd)
    slots = extend(allocator, [0], [4 * PAGE_SIZE], [-1])
    assert slots is not None
    assert sorted(pages_of(slots)) == sorted(set((odd // PAGE_SIZE).tolist()))
    assert allocator.pages.off_lane > 0


def test_free_takes_any_token_of_a_page(make: Callable[..., Any]) -> None:
    allocator = make()
    slots = extend(allocator, [0], [130], [-1])
    assert slots is not None
    allocator.free(slots[torch.randperm(len(slots))])
    assert allocator.available_size() == PAGES * PAGE_SIZE
    allocator.free(torch.empty(0, dtype=torch.int64))
    assert allocator.available_size() == PAGES * PAGE_SIZE


@pytest.mark.parametrize("start", [0, 64, 10, 63])
def test_a_segment_frees_its_pages_wherever_it_begins(make: Callable[..., Any], start: int) -> None:
    allocator = make()
    slots = extend(allocator, [0], [200], [-1])
    assert slots is not None
    allocator.free_segment(slots[start:], start_pos=start)
    kept = start // PAGE_SIZE
    assert allocator.available_size() == (PAGES - kept) * PAGE_SIZE


def test_a_group_frees_at_its_end(make: Callable[..., Any]) -> None:
    allocator = make()
    slots = allocator.alloc(6 * PAGE_SIZE)
    rest = (PAGES - 6) * PAGE_SIZE
    allocator.free_group_begin()
    allocator.free(slots[: 2 * PAGE_SIZE])
    allocator.free_segment(slots[2 * PAGE_SIZE : 5 * PAGE_SIZE], start_pos=2 * PAGE_SIZE)
    assert allocator.available_size() == rest
    allocator.free_group_end()
    assert allocator.available_size() == rest + 5 * PAGE_SIZE
    allocator.free(slots[5 * PAGE_SIZE :])
    assert allocator.available_size() == PAGES * PAGE_SIZE


def test_clear_gives_everything_back(make: Callable[..., Any]) -> None:
    allocator = make()
    allocator.alloc(3 * PAGE_SIZE)
    allocator.free_group_begin()
    allocator.clear()
    assert allocator.available_size() == PAGES * PAGE_SIZE
    allocator.free(allocator.alloc(PAGE_SIZE))  # not into a group
    assert allocator.available_size() == PAGES * PAGE_SIZE
    allocator.merge_and_sort_free()
    assert allocator.available_size() == PAGES * PAGE_SIZE


def test_a_double_free_is_named(make: Callable[..., Any]) -> None:
    allocator = make()
    slots = allocator.alloc(PAGE_SIZE)
    allocator.free(slots)
    with pytest.raises(ValueError, match=f"pages {pages_of(slots)[0]} that are free already"):
        allocator.free(slots)


def test_the_engines_own_debug_checks_run(make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_DEBUG_MEMORY_POOL", "1")
    allocator = make()
    assert allocator.debug_mode
    slots = extend(allocator, [0], [200], [-1])
    assert slots is not None
    allocator.free_group_begin()
    allocator.free_segment(slots[:128], start_pos=0)
    allocator.free(slots[128:])
    allocator.free_group_end()
    assert allocator.available_size() == PAGES * PAGE_SIZE


def test_what_no_prefill_group_does_is_refused(make: Callable[..., Any]) -> None:
    allocator = make()
    with pytest.raises(NotImplementedError, match="does not decode"):
        allocator.alloc_decode(torch.tensor([1]), torch.tensor([1]), torch.tensor([0]))
    with pytest.raises(NotImplementedError, match="cannot be resized"):
        allocator.resize(None)


def test_bad_sizes_are_named(make: Callable[..., Any], place: Place) -> None:
    from plait.engine.allocator import OwnedPageAllocator

    allocator = make()
    with pytest.raises(ValueError, match="need_size is 65"):
        allocator.alloc(65)
    with pytest.raises(ValueError, match=r"prefix lengths \[31\] are not whole pages"):
        extend(allocator, [31], [64], [0])
    with pytest.raises(ValueError, match="page_size is 1"):
        OwnedPageAllocator(640, 1, torch.bfloat16, "cpu", None, True)


def test_random_owners_are_equal_on_all_ranks_and_uneven(make: Callable[..., Any], place: Place) -> None:
    found = []
    for rank in range(2):
        allocator = make(pages=200, test_owners=Owners.RANDOM)
        place.at(rank, 2)
        slots = extend(allocator, [0], [100 * PAGE_SIZE], [-1])
        assert slots is not None
        found.append(pages_of(slots))
    assert found[0] == found[1]
    owners = [page % 2 for page in found[0]]
    assert owners != [owners[0], 1 - owners[0]] * 50


def test_the_split_decides_which_lanes_are_preferred(make: Callable[..., Any]) -> None:
    slots = extend(make(split=Split.PAGE_ZIGZAG), [0], [8 * PAGE_SIZE], [-1])
    assert slots is not None
    assert [page % 2 for page in pages_of(slots)] == [0, 0, 1, 1, 1, 1, 0, 0]


class NaiveKernel:
    """The stock allocation kernel in torch (it is there for NPUs), called as the Triton one is."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def run(
            prefix_lens: torch.Tensor,
            seq_lens: torch.Tensor,
            last_loc: torch.Tensor,
            free_pages: torch.Tensor,
            out: torch.Tensor,
            _: int,
            page_size: int,
        ) -> None:
            from sglang.srt.mem_cache.allocator.paged import alloc_extend_naive

            needed = int(((seq_lens + 63) // 64 - (prefix_lens + 63) // 64).sum())
            if needed <= len(free_pages):  # otherwise the kernel reads beyond, and stock returns None after
                alloc_extend_naive(prefix_lens, seq_lens, last_loc, free_pages, out, page_size, "cpu")

        return run


@settings(max_examples=60, deadline=None)
@given(data=st.data(), ranks=st.sampled_from([2, 4]), split=st.sampled_from(list(Split)))
def test_it_answers_as_the_stock_allocator_does(data: st.DataObject, ranks: int, split: Split) -> None:
    """The same calls: equal free sizes, equal refusals, slots of equal form; only the page ids differ."""
    from sglang.srt.mem_cache.allocator import paged

    from plait.engine.allocator import OwnedPageAllocator

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paged, "alloc_extend_kernel", NaiveKernel())
        patch.setattr(state, "settings", Settings(layout=Layout.SHARED, split=split))
        patch.setattr(state, "group", lambda: state.Group(0, ranks))
        given_ = (8 * ranks * PAGE_SIZE, PAGE_SIZE, torch.bfloat16, "cpu", None, True)
        both = (OwnedPageAllocator(*given_), paged.PagedTokenToKVPoolAllocator(*given_))
        live: list[list[torch.Tensor]] = []  # per sequence: all its slots, in each allocator
        for _ in range(data.draw(st.integers(1, 12))):
            grown = [i for i, one in enumerate(live) if len(one[0]) % PAGE_SIZE == 0]
            action = data.draw(st.sampled_from(["new", "grow", "free", "segment"]))
            if action == "grow" and grown:
                index = data.draw(st.sampled_from(grown))
                slots = [
                    extend(a, [len(one)], [len(one) + 100], [int(one[-1])])
                    for a, one in zip(both, live[index], strict=True)
                ]
                if slots[0] is not None and slots[1] is not None:
                    live[index] = [torch.cat(pair) for pair in zip(live[index], slots, strict=True)]
            elif action in ("free", "segment") and live:
                freed = live.pop(data.draw(st.integers(0, len(live) - 1)))
                for allocator, one in zip(both, freed, strict=True):
                    if action == "free":
                        allocator.free(one)
                    else:
                        allocator.free_segment(one, start_pos=0)
                continue
            else:
                length = data.draw(st.sampled_from([1, 64, 65, 128, 400]))
                slots = [extend(a, [0], [length], [-1]) for a in both]
                if slots[0] is not None and slots[1] is not None:
                    live.append([slots[0], slots[1]])
            assert (slots[0] is None) == (slots[1] is None)
            if slots[0] is not None and slots[1] is not None:
                assert (slots[0] % PAGE_SIZE).tolist() == (slots[1] % PAGE_SIZE).tolist()
                assert slots[0].dtype == slots[1].dtype
        assert both[0].available_size() == both[1].available_size()
        held = np.concatenate([one[0].numpy() for one in live] or [np.zeros(0, dtype=np.int64)])
        assert len(set(held.tolist())) == len(held), "a slot was handed out twice"
        assert (held >= ranks * PAGE_SIZE).all(), "the reserved stripe was handed out"
