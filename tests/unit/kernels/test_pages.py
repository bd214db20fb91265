"""Maps of pages and slots: equal to the arithmetic of the layout, one id at a time; holes stay holes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.kernels import interpreter  # noqa: F401
from tests.unit.kernels.guarded import Guarded, same_bytes

from plait.contract.layouts import PAGE_SIZE
from plait.kernels import pages as maps
from plait.kernels.pages import MapConfig
from plait.layout import owner, physical, slot_owner, slot_physical

SMALL = MapConfig(16, 4)
DTYPES = [(torch.int32, torch.int32), (torch.int64, torch.int32), (torch.int32, torch.int64)]


def with_holes(rng: np.random.Generator, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    ids = ids.copy()
    ids[rng.random(ids.shape) < 0.15] = -1
    return ids


def filled(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Guarded, torch.Tensor]:
    return Guarded(shape, dtype), Guarded(shape, dtype).tensor


@pytest.mark.parametrize(("dtype", "out_dtype"), DTYPES)
def test_page_inverse_names_the_last_dense_page_of_each_page(
    dtype: torch.dtype, out_dtype: torch.dtype
) -> None:
    rng = np.random.default_rng(1)
    for count, size in ((0, 5), (1, 1), (7, 40), (50, 20), (40, 64)):
        ids = with_holes(rng, rng.integers(0, size + 1, count))  # one id beyond the table: dropped
        out, expected = filled((size,), out_dtype)
        pages = torch.from_numpy(ids).to(dtype)
        assert maps.page_inverse(pages, out.tensor, config=SMALL) is out.tensor
        maps.page_inverse_reference(pages, expected)
        assert same_bytes(out.tensor, expected)
        out.check()
        plain = [max(np.flatnonzero(ids == page), default=-1) for page in range(size)]
        assert out.tensor.tolist() == plain


@pytest.mark.parametrize(("dtype", "out_dtype"), DTYPES)
@pytest.mark.parametrize("unit", [1, PAGE_SIZE])
def test_dense_ids_follow_the_inverse(unit: int, dtype: torch.dtype, out_dtype: torch.dtype) -> None:
    rng = np.random.default_rng(unit)
    remap: tuple[Callable[..., Any], ...] = (maps.dense_pages, maps.dense_pages_reference)
    if unit > 1:
        remap = (maps.dense_slots, maps.dense_slots_reference)
    inverse = torch.from_numpy(with_holes(rng, rng.permutation(20))).to(torch.int32)
    for shape in ((0,), (1,), (3, 11), (3, 5), (2, 0), (5, 16)):
        ids = with_holes(rng, rng.integers(0, 22 * unit, shape))  # ids of two pages beyond the table
        out, expected = filled(shape, out_dtype)
        table = torch.from_numpy(ids).to(dtype)
        remap[0](table, inverse, out.tensor, config=SMALL)
        remap[1](table, inverse, expected)
        assert same_bytes(out.tensor, expected)
        out.check()
        for one, got in zip(ids.reshape(-1).tolist(), out.tensor.view(-1).tolist(), strict=True):
            dense = int(inverse[one // unit]) if 0 <= one < 20 * unit else -1
            assert got == (-1 if dense < 0 else dense * unit + one % unit)


@pytest.mark.parametrize(("dtype", "out_dtype"), DTYPES)
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_peer_ids_are_owner_times_stride_plus_physical(
    ranks: int, dtype: torch.dtype, out_dtype: torch.dtype
) -> None:
    rng = np.random.default_rng(ranks)
    for shape in ((0,), (1,), (3, 11), (31,), (40,)):
        ids = with_holes(rng, rng.integers(0, 9000, shape))
        table = torch.from_numpy(ids).to(dtype)
        out, expected = filled(shape, out_dtype)
        maps.peer_pages(table, out.tensor, ranks=ranks, pages_per_rank=9001, config=SMALL)
        maps.peer_pages_reference(table, expected, ranks=ranks, pages_per_rank=9001)
        assert same_bytes(out.tensor, expected)
        out.check()
        for one, got in zip(ids.reshape(-1).tolist(), out.tensor.view(-1).tolist(), strict=True):
            assert got == (-1 if one < 0 else owner(one, ranks) * 9001 + physical(one, ranks))
        out, expected = filled(shape, out_dtype)
        maps.peer_slots(table, out.tensor, ranks=ranks, rows_per_rank=64000, config=SMALL)
        maps.peer_slots_reference(table, expected, ranks=ranks, rows_per_rank=64000)
        assert same_bytes(out.tensor, expected)
        out.check()
        for one, got in zip(ids.reshape(-1).tolist(), out.tensor.view(-1).tolist(), strict=True):
            assert got == (-1 if one < 0 else slot_owner(one, ranks) * 64000 + slot_physical(one, ranks))


def test_a_table_may_be_mapped_in_place() -> None:
    table = torch.tensor([[5, -1], [64, 130]], dtype=torch.int32)
    inverse = torch.tensor([3, 0, -1], dtype=torch.int32)
    assert maps.dense_slots(table, inverse, table).tolist() == [[197, -1], [0, -1]]


def test_large_ids_do_not_wrap() -> None:
    top = torch.tensor([(2**31 - 1) // PAGE_SIZE * PAGE_SIZE], dtype=torch.int64)
    wide = torch.empty_like(top)
    maps.peer_slots(top, wide, ranks=3, rows_per_rank=2**33)
    assert wide.item() == slot_owner(top.item(), 3) * 2**33 + slot_physical(top.item(), 3)


def test_what_does_not_fit_is_refused() -> None:
    ids = torch.zeros(4, dtype=torch.int32)
    for peer in (maps.peer_pages, maps.peer_pages_reference):
        with pytest.raises(ValueError, match="do not fit"):
            peer(ids, ids, ranks=4, pages_per_rank=2**29)
        peer(ids, torch.zeros(4, dtype=torch.int64), ranks=4, pages_per_rank=2**29)
    with pytest.raises(ValueError, match="int32 or int64"):
        maps.dense_pages(ids.float(), ids, ids)
    with pytest.raises(ValueError, match="int32 or int64"):
        maps.page_inverse(ids[::2], ids)
    with pytest.raises(ValueError, match="out has shape"):
        maps.dense_slots(ids, ids, ids[:2])
