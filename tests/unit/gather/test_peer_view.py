"""Page tables for reading all ranks in place, and the view that they are for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.unit.gather.batches import MLA_KINDS
from tests.unit.gather.one_process import CPU, CountingBarrier, Side

from plait.contract.layouts import PAGE_SIZE
from plait.gather import GatherPlan, GatherRequest
from plait.gather.peer_exchange import Spans
from plait.gather.peer_view import INT32_MAX, PeerView, in_reach, peer_pages, peer_rows, peer_table
from plait.kernels.pages import peer_pages_reference, peer_slots_reference
from plait.peer import Segment

PAGE = MLA_KINDS[0].nbytes


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_a_page_and_its_rows_are_its_owners(ranks: int) -> None:
    pages = np.arange(ranks, 50 * ranks, dtype=np.int64)
    there = peer_pages(pages, ranks=ranks, pages_per_rank=1000)
    assert (there // 1000).tolist() == (pages % ranks).tolist()
    assert (there % 1000).tolist() == (pages // ranks).tolist()
    slots = pages * PAGE_SIZE + pages % PAGE_SIZE
    rows = peer_rows(slots, ranks=ranks, pages_per_rank=1000)
    assert (rows // PAGE_SIZE).tolist() == there.tolist()
    assert (rows % PAGE_SIZE).tolist() == (slots % PAGE_SIZE).tolist()


def test_holes_stay_and_the_shape_too() -> None:
    table = np.array([[4, -1], [-7, 9]], dtype=np.int64)
    assert peer_pages(table, ranks=4, pages_per_rank=100).tolist() == [[1, -1], [-7, 102]]
    assert peer_rows(table, ranks=4, pages_per_rank=100).tolist() == [[4, -1], [-7, 9]]


def test_host_and_device_say_the_same() -> None:
    rng = np.random.default_rng(5)
    for ranks in (2, 4):
        ids = rng.integers(-1, 5000, (7, 9))
        out = torch.empty(7, 9, dtype=torch.int64)
        given = torch.from_numpy(ids)
        peer_pages_reference(given, out, ranks=ranks, pages_per_rank=2000)
        assert out.tolist() == peer_pages(ids, ranks=ranks, pages_per_rank=2000).tolist()
        peer_slots_reference(given, out, ranks=ranks, rows_per_rank=2000 * PAGE_SIZE)
        assert out.tolist() == peer_rows(ids, ranks=ranks, pages_per_rank=2000).tolist()


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_a_page_table_says_the_same_and_stays_int32(ranks: int) -> None:
    rng = np.random.default_rng(ranks)
    # So many that the product of owner and rows per rank needs every bit of an int32.
    per_rank = INT32_MAX // PAGE_SIZE // ranks
    slots = rng.integers(0, ranks * per_rank * PAGE_SIZE, (5, 130))
    slots[0, :2] = 0, ranks * per_rank * PAGE_SIZE - 1
    table = peer_table(torch.from_numpy(slots).int(), ranks=ranks, pages_per_rank=per_rank)
    assert table.dtype == torch.int32
    assert table.tolist() == peer_rows(slots, ranks=ranks, pages_per_rank=per_rank).tolist()
    assert int(table.min()) >= 0


def test_reach_ends_with_the_last_int32() -> None:
    rows = (INT32_MAX + 1) // 2
    assert in_reach(stride=rows * 656, row_bytes=656, ranks=2)
    assert not in_reach(stride=(rows + 1) * 656, row_bytes=656, ranks=2)


def test_eight_ranks_of_full_pools_are_in_reach() -> None:
    for row_bytes in (656, 1152, 8448):  # MLA rows, and index pages
        assert in_reach(stride=120 << 30, row_bytes=row_bytes, ranks=8)


def make(ranks: int = 2) -> tuple[Spans, CountingBarrier, PeerView]:
    side = Side([Segment("mla.0", 3 * PAGE), Segment("mla.1", 3 * PAGE)], ranks=ranks, unit_bytes=[PAGE])
    for rank in range(ranks):
        for layer in range(2):
            side.at(rank).own(f"mla.{layer}").fill_(10 * rank + layer)
    spans = Spans(side.at(0), ["mla.0", "mla.1"], page_bytes=PAGE)
    barrier = CountingBarrier()
    return spans, barrier, PeerView(spans, barrier, row_shape=(1, 656), dtype=torch.float8_e4m3fn)


def test_rows_of_every_rank_are_where_the_tables_say_in_the_pools_dtype() -> None:
    _, _, view = make()
    plan = GatherPlan.from_requests([GatherRequest(64, 1, np.array([3, 4]))], ranks=2, budget=2)
    view.begin(plan, rank=0, device=CPU)
    for layer in range(2):
        rows = view.consume(layer)
        assert (rows.dtype, rows.shape[1:]) == (torch.float8_e4m3fn, (1, 656))
        slots = np.array([3 * PAGE_SIZE + 5, 4 * PAGE_SIZE])
        there = peer_rows(slots, ranks=2, pages_per_rank=view.pages_per_rank)
        assert rows[torch.from_numpy(there), 0, 0].view(torch.uint8).tolist() == [10 + layer, layer]


def test_each_layer_is_read_after_one_barrier() -> None:
    _, barrier, view = make()
    plan = GatherPlan.from_requests([GatherRequest(64, 1, np.array([3, 4]))], ranks=2, budget=2)
    for _ in range(2):
        view.begin(plan, rank=0, device=CPU)
        for layer in (0, 0, 1, 1):
            view.consume(layer)
        view.end()
    assert barrier.log == ["meet test"] * 4
    with pytest.raises(RuntimeError, match="outside a context-parallel prefill batch"):
        view.consume(0)


def test_pools_beyond_int32_are_refused_with_the_numbers() -> None:
    spans, barrier, _ = make()
    spans.stride = PAGE * (2**31 // PAGE_SIZE)
    with pytest.raises(ValueError, match="4294967296 rows of 656 bytes: beyond int32"):
        PeerView(spans, barrier, row_shape=(1, 656), dtype=torch.float8_e4m3fn)
