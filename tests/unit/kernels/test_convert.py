"""FP8 rows to bf16 while landing: the engine's own dequantized bytes, at the right places only."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.unit.kernels import interpreter  # noqa: F401
from tests.unit.kernels.guarded import POISON, Guarded, random_bytes, random_rows, same_bytes
from tests.unit.kernels.stock import stock

from plait.contract.layouts import PAGE_SIZE
from plait.kernels.convert import (
    CONFIGS,
    PAGE_BYTES,
    WIDTH,
    convert_pages,
    convert_pages_reference,
    convert_rows,
    convert_rows_reference,
    unpacked_rows,
)
from plait.kernels.store_mla import StoreConfig, packed_rows


def packed_pool(rng: np.random.Generator, rows: int) -> torch.Tensor:
    """uint8 [rows, 656] as the store leaves them."""
    nope, rope = random_rows(rng, rows, 512, torch.bfloat16), random_rows(rng, rows, 64, torch.bfloat16)
    return packed_rows(nope, rope)


def test_unpacked_rows_are_stock_bytes() -> None:
    rng = np.random.default_rng(1)
    rows = packed_pool(rng, 20)
    module = stock("dequant_k_cache")
    quantized = rows.view(torch.float8_e4m3fn)[:, None]
    assert same_bytes(unpacked_rows(rows), module._dequantize_k_cache_ref(quantized.clone()))
    assert same_bytes(unpacked_rows(rows), module.dequantize_k_cache(quantized))
    slots = torch.from_numpy(rng.integers(0, 20, 9)).to(torch.int32)
    assert same_bytes(unpacked_rows(rows[slots]), module.dequantize_k_cache_paged(quantized, slots))


def test_every_value_of_the_format_is_converted_exactly() -> None:
    row = torch.zeros(1, 656, dtype=torch.uint8)
    codes = torch.tensor([code for code in range(256) if code not in (0x7F, 0xFF)], dtype=torch.uint8)
    row[0, : len(codes)] = codes
    row[0, 512:528] = torch.tensor([0.37, 1.5e-3, 1.0, 3e38]).view(torch.uint8)
    out = Guarded((1, WIDTH), torch.bfloat16)
    convert_rows(row, torch.zeros(1, dtype=torch.int64), out.tensor)
    assert same_bytes(out.tensor, unpacked_rows(row))


@pytest.mark.parametrize("config", [*CONFIGS, StoreConfig(1, 1)])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_rows_by_slot(dtype: torch.dtype, config: StoreConfig) -> None:
    rng = np.random.default_rng(2)
    pool = packed_pool(rng, 70)
    for count in (0, 1, 7, 13):
        slots = torch.from_numpy(rng.integers(0, 70, count)).to(dtype)
        slots[torch.from_numpy(rng.random(count) < 0.2)] = -1
        out, expected = Guarded((count, 1, WIDTH), torch.bfloat16), Guarded((count, 1, WIDTH), torch.bfloat16)
        convert_rows(pool[:, None].view(torch.float8_e4m3fn), slots, out.tensor, config=config)
        convert_rows_reference(pool, slots, expected.tensor)
        assert same_bytes(out.tensor, expected.tensor)
        out.check()
        assert not bool(out.tensor[slots < 0].any())


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_pages_of_all_owners(ranks: int) -> None:
    rng = np.random.default_rng(ranks)
    pages, dense = 2, 3
    stride = 3 * PAGE_BYTES
    size = (ranks - 1) * stride + pages * PAGE_BYTES
    spanning = random_bytes(rng, size + 16)
    spanning = spanning[-spanning.data_ptr() % 16 :][:size]
    for rank in range(ranks):
        spanning[rank * stride :][: pages * PAGE_BYTES] = packed_pool(rng, pages * PAGE_SIZE).view(-1)
    for count, config in ((0, CONFIGS[0]), (1, CONFIGS[1]), (3, StoreConfig(16, 4))):
        owner, physical = (
            torch.from_numpy(rng.integers(0, n, count)).to(torch.int32) for n in (ranks, pages)
        )
        place = torch.from_numpy(rng.permutation(dense)[:count]).to(torch.int32)
        if count > 1:
            place[1] = -1
        shape = (dense * PAGE_SIZE, 1, WIDTH)
        out, expected = Guarded(shape, torch.bfloat16), Guarded(shape, torch.bfloat16)
        convert_pages(spanning, stride, owner, physical, place, out.tensor, config=config)
        convert_pages_reference(spanning, stride, owner, physical, place, expected.tensor)
        assert same_bytes(out.tensor, expected.tensor)
        out.check()
        for i in range(count):
            if place[i] < 0:
                continue
            start = int(owner[i]) * stride + int(physical[i]) * PAGE_BYTES
            page = spanning[start : start + PAGE_BYTES].view(PAGE_SIZE, 656)
            assert same_bytes(out.tensor[int(place[i]) * PAGE_SIZE :][:PAGE_SIZE], unpacked_rows(page))
        rest = sorted(set(range(dense)) - set(place.tolist()))
        untouched = out.tensor.view(dense, -1)[rest].contiguous().view(torch.uint8)
        assert bool((untouched == POISON).all())


def test_what_does_not_fit_is_refused() -> None:
    pool, slots = torch.zeros(64, 656, dtype=torch.uint8), torch.zeros(64, dtype=torch.int32)
    out = torch.zeros(64, WIDTH, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="packed is"):
        convert_rows(pool[:, :640], slots, out)
    with pytest.raises(ValueError, match="slots is"):
        convert_rows(pool, slots[:3], out)
    with pytest.raises(ValueError, match="out is"):
        convert_rows(pool, slots, out.float())
    ids = slots[:1]
    with pytest.raises(ValueError, match="whole pages"):
        convert_pages(pool.view(-1), PAGE_BYTES, ids, ids, ids, out[:63])
    with pytest.raises(ValueError, match="multiples of 16"):
        convert_pages(pool.view(-1), 8, ids, ids, ids, out)
