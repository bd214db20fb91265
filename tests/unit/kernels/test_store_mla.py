"""MLA stores: own rows where the layout says, in stock's bytes, and no byte elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.unit.kernels import interpreter  # noqa: F401
from tests.unit.kernels.guarded import POISON, Guarded, random_rows, random_slots, same_bytes
from tests.unit.kernels.stock import stock

from plait.contract.layouts import PAGE_SIZE
from plait.kernels.store_mla import CONFIGS, StoreConfig, packed_rows, store_mla, store_mla_reference
from plait.layout import slot_owner, slot_physical

PAGES = 3
ROWS = PAGES * PAGE_SIZE
KINDS = [(torch.uint8, 656, torch.bfloat16), (torch.bfloat16, 576, torch.bfloat16)]
KINDS += [(torch.float32, 576, torch.float32), (torch.float32, 576, torch.bfloat16)]


@pytest.mark.parametrize(("dtype", "width", "source"), KINDS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_rows_of_the_rank_land_and_nothing_else(
    ranks: int, dtype: torch.dtype, width: int, source: torch.dtype
) -> None:
    rng = np.random.default_rng(ranks * width)
    for count, extra, config in (
        (0, 3, CONFIGS[0]),
        (1, 0, CONFIGS[3]),
        (5, 2, CONFIGS[2]),
        (13, 0, CONFIGS[0]),
    ):
        slots = random_slots(rng, count, ranks=ranks, pages=PAGES).to(
            torch.int64 if count % 2 else torch.int32
        )
        nope = random_rows(rng, count + extra, 512, source)
        both = random_rows(rng, count + extra, 576, source)
        rope = both[:, 512:] if count != 5 else random_rows(rng, count + extra, 64, source)[:, None]
        for rank in range(ranks):
            out, expected = Guarded((ROWS, 1, width), dtype), Guarded((ROWS, 1, width), dtype)
            store_mla(out.tensor, slots, nope, rope, rank=rank, ranks=ranks, config=config)
            store_mla_reference(expected.tensor, slots, nope, rope, rank=rank, ranks=ranks)
            assert same_bytes(out.tensor, expected.tensor)
            out.check()
            own = (slots >= 0) & (slot_owner(slots, ranks) == rank)
            where = slot_physical(slots, ranks)[own].long()
            kept = torch.ones(ROWS, dtype=torch.bool)
            kept[where] = False
            assert bool((out.tensor.view(ROWS, -1).view(torch.uint8)[kept] == POISON).all())
            if dtype == torch.uint8:
                rows = packed_rows(nope[:count], rope.reshape(count + extra, 64)[:count])
            else:
                rows = torch.cat([nope, rope.reshape(count + extra, 64)], 1)[:count].to(dtype)
            assert same_bytes(out.tensor[where, 0], rows[own])


@pytest.mark.parametrize(("dtype", "width", "source"), KINDS[:2])
def test_with_a_dummy_the_other_rows_go_to_row_0(dtype: torch.dtype, width: int, source: torch.dtype) -> None:
    rng = np.random.default_rng(3)
    slots = random_slots(rng, 9, ranks=2, pages=PAGES)
    nope, rope = random_rows(rng, 9, 512, source), random_rows(rng, 9, 64, source)
    for rank in (0, 1):
        out, expected = Guarded((ROWS, width), dtype), Guarded((ROWS, width), dtype)
        store_mla(out.tensor, slots, nope, rope, rank=rank, ranks=2, dummy=True)
        store_mla_reference(expected.tensor, slots, nope, rope, rank=rank, ranks=2)
        assert same_bytes(out.tensor[1:], expected.tensor[1:])
        assert not bool((out.tensor[0].view(torch.uint8) == POISON).all())
        out.check()


def test_packed_rows_are_stock_bytes() -> None:
    rng = np.random.default_rng(7)
    quantize = stock("quant_k_cache").quantize_k_cache_separate
    nope, rope = random_rows(rng, 24, 512, torch.bfloat16), random_rows(rng, 24, 64, torch.bfloat16)
    nope[3] *= 1e-30
    nope[4, :128] *= 2.0**60
    nope[5, 128:256] = 0
    nope[5, 130] = 448.0
    nope[6] = nope[6].abs().neg()
    latent, roped = quantize(nope, rope)
    stored = torch.cat([latent, roped], dim=-1).view(24, 656)
    assert same_bytes(packed_rows(nope, rope), stored)
    out = Guarded((ROWS, 656))
    slots = torch.arange(64, 64 + 24)
    store_mla(out.tensor, slots, nope, rope, rank=0, ranks=1)
    assert same_bytes(out.tensor[64:88], stored)


def test_a_tile_of_zeros_reads_as_zeros() -> None:
    nope, rope = torch.zeros(1, 512, dtype=torch.bfloat16), torch.ones(1, 64, dtype=torch.bfloat16)
    row = packed_rows(nope, rope)
    assert row[0, 512:528].tolist() == [0] * 16
    values = row[:, :512].view(torch.float8_e4m3fn).float() * 0.0
    assert values.abs().max() == 0


def test_odd_widths_of_tiny_models() -> None:
    rng = np.random.default_rng(11)
    slots = random_slots(rng, 6, ranks=2, pages=PAGES)
    nope, rope = random_rows(rng, 6, 40, torch.float32), random_rows(rng, 6, 24, torch.float32)
    out, expected = Guarded((ROWS, 64), torch.float32), Guarded((ROWS, 64), torch.float32)
    store_mla(out.tensor, slots, nope, rope, rank=1, ranks=2, config=StoreConfig(4, 4))
    store_mla_reference(expected.tensor, slots, nope, rope, rank=1, ranks=2)
    assert same_bytes(out.tensor, expected.tensor)
    out.check()


def test_what_does_not_fit_is_refused() -> None:
    buffer, slots = torch.zeros(64, 656, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64)
    nope, rope = torch.zeros(2, 512, dtype=torch.bfloat16), torch.zeros(2, 64, dtype=torch.bfloat16)
    store = [store_mla, store_mla_reference]
    for call in store:
        with pytest.raises(ValueError, match="contiguous tensor"):
            call(buffer[::2], slots, nope, rope, rank=0, ranks=1)
        with pytest.raises(ValueError, match="int32 or int64"):
            call(buffer, slots.float(), nope, rope, rank=0, ranks=1)
        with pytest.raises(ValueError, match="at least 2"):
            call(buffer, slots, nope[:1], rope, rank=0, ranks=1)
        with pytest.raises(ValueError, match="at least 2"):
            call(buffer, slots, nope.T.contiguous().T, rope, rank=0, ranks=1)
        with pytest.raises(ValueError, match="656 bytes"):
            call(buffer, slots, nope[:, :256], rope, rank=0, ranks=1)
        with pytest.raises(ValueError, match="bfloat16"):
            call(buffer, slots, nope.float(), rope, rank=0, ranks=1)
        with pytest.raises(ValueError, match="rows have"):
            call(buffer.view(torch.float32), slots, nope, rope, rank=0, ranks=1)
