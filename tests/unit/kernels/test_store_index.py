"""Index stores: keys and scales where the page keeps them, in stock's bytes, and no byte elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.unit.kernels import interpreter  # noqa: F401
from tests.unit.kernels.guarded import POISON, Guarded, random_bytes, random_rows, random_slots, same_bytes
from tests.unit.kernels.stock import stock

from plait.contract.layouts import PAGE_SIZE
from plait.kernels.store_index import (
    CONFIGS,
    PAGE_BYTES,
    Rounding,
    quantized_keys,
    store_index,
    store_index_key,
    store_index_key_reference,
    store_index_reference,
)
from plait.layout import slot_owner, slot_physical

PAGES = 3
CASES = ((0, 2, CONFIGS[0]), (1, 0, CONFIGS[3]), (6, 3, CONFIGS[1]), (19, 0, CONFIGS[0]))


def random_keys(rng: np.random.Generator, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    key = random_bytes(rng, count, 128).view(torch.float8_e4m3fn)
    return key, torch.from_numpy(rng.random((count, 1), dtype=np.float32))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_keys_of_the_rank_land_and_nothing_else(ranks: int) -> None:
    rng = np.random.default_rng(ranks)
    for count, extra, config in CASES:
        slots = random_slots(rng, count, ranks=ranks, pages=PAGES).to(
            torch.int64 if count % 2 else torch.int32
        )
        key, scale = random_keys(rng, count + extra)
        for rank in range(ranks):
            out, expected = Guarded((PAGES, PAGE_BYTES)), Guarded((PAGES, PAGE_BYTES))
            store_index(out.tensor, slots, key, scale, rank=rank, ranks=ranks, config=config)
            store_index_reference(expected.tensor, slots, key, scale[:, 0], rank=rank, ranks=ranks)
            assert same_bytes(out.tensor, expected.tensor)
            out.check()
            plain = Guarded((PAGES, PAGE_BYTES)).tensor
            for i, slot in enumerate(slots.tolist()):
                if slot < 0 or slot_owner(slot, ranks) != rank:
                    continue
                page, row = divmod(slot_physical(slot, ranks), PAGE_SIZE)
                plain[page, row * 128 :][:128] = key[i].view(torch.uint8)
                plain[page, 8192 + row * 4 :][:4] = scale[i].view(torch.uint8)
            assert same_bytes(out.tensor, plain)


@pytest.mark.parametrize("rounding", Rounding)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_quantized_keys_equal_the_reference(rounding: Rounding, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(int(rounding))
    for count, extra, config in CASES:
        slots = random_slots(rng, count, ranks=2, pages=PAGES)
        wide = random_rows(rng, count + extra, 192, dtype)
        if count > 4:
            wide[0], wide[1, 5], wide[2, :] = 0, 448.0, 1e-6
        key = wide[:, :128]
        out, expected = Guarded((PAGES, PAGE_BYTES)), Guarded((PAGES, PAGE_BYTES))
        store_index_key(out.tensor, slots, key, rounding=rounding, rank=1, ranks=2, config=config)
        store_index_key_reference(expected.tensor, slots, key, rounding=rounding, rank=1, ranks=2)
        assert same_bytes(out.tensor, expected.tensor)
        out.check()


@pytest.mark.parametrize(
    ("rounding", "scale_fmt"), [(Rounding.POWER_OF_TWO, "ue8m0"), (Rounding.PLAIN, None)]
)
def test_quantized_keys_are_stock_bytes(rounding: Rounding, scale_fmt: str | None) -> None:
    rng = np.random.default_rng(5)
    key = random_rows(rng, 40, 128, torch.bfloat16)
    key[0], key[1, 3], key[2] = 0, 448.0, 1.75 * 2.0**-9
    quantized, scale = stock("triton_kernel").act_quant(key, 128, scale_fmt)
    ours = quantized_keys(key, rounding)
    assert same_bytes(ours[0], quantized)
    assert same_bytes(ours[1], scale)


def test_pages_are_stock_bytes() -> None:
    rng = np.random.default_rng(6)
    slots = random_slots(rng, 30, ranks=1, pages=PAGES)
    slots = slots[slots >= 0]
    key, scale = random_keys(rng, len(slots))
    out, expected = Guarded((PAGES, PAGE_BYTES)), Guarded((PAGES, PAGE_BYTES))
    store = stock("index_buf_accessor")._set_k_and_s_triton
    store(expected.tensor, slots, key, scale, page_size=PAGE_SIZE)
    store_index(out.tensor, slots, key, scale, rank=0, ranks=1)
    assert same_bytes(out.tensor, expected.tensor)


def test_with_a_dummy_the_other_keys_go_to_row_0() -> None:
    rng = np.random.default_rng(8)
    slots = random_slots(rng, 12, ranks=2, pages=PAGES)
    key, scale = random_keys(rng, 12)
    out, expected = Guarded((PAGES, PAGE_BYTES)), Guarded((PAGES, PAGE_BYTES))
    store_index(out.tensor, slots, key, scale, rank=1, ranks=2, dummy=True)
    store_index_reference(expected.tensor, slots, key, scale, rank=1, ranks=2)
    for span in (slice(0, 128), slice(8192, 8196)):
        assert not bool((out.tensor[0, span] == POISON).all())
        out.tensor[0, span] = POISON
    assert same_bytes(out.tensor, expected.tensor)
    out.check()


def test_what_does_not_fit_is_refused() -> None:
    buffer, slots = torch.zeros(2, PAGE_BYTES, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64)
    key, scale = torch.zeros(2, 128, dtype=torch.float8_e4m3fn), torch.zeros(2)
    with pytest.raises(ValueError, match="buffer is"):
        store_index(buffer[:, :-4], slots, key, scale, rank=0, ranks=1)
    with pytest.raises(ValueError, match="slots is"):
        store_index(buffer, slots.float(), key, scale, rank=0, ranks=1)
    with pytest.raises(ValueError, match="key is"):
        store_index(buffer, slots, key.float(), scale, rank=0, ranks=1)
    with pytest.raises(ValueError, match="key is"):
        store_index_key(buffer, slots, key, rounding=Rounding.FUSED, rank=0, ranks=1)
    with pytest.raises(ValueError, match="scale is"):
        store_index(buffer, slots, key, scale[:1], rank=0, ranks=1)
    with pytest.raises(ValueError, match="key is"):
        store_index(buffer, torch.zeros(3, dtype=torch.int64), key, scale, rank=0, ranks=1)
