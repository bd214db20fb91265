"""Torch stores leave the bytes where the engine's kernels would."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from plait.engine.cpu.stores import (
    get_mla_kv_buffer,
    index_keys_at,
    set_index_k_scale_buffer,
    set_mla_kv_buffer,
)

PAGE, DIM = 64, 128


@pytest.mark.parametrize("shape", [(3, 6), (3, 1, 6)])
def test_mla_rows_are_written_and_read_back(shape: tuple[int, ...]) -> None:
    buffer = torch.zeros(10, 1, 8)
    nope, rope = torch.rand(shape), torch.rand(*shape[:-1], 2)
    loc = torch.tensor([7, 0, 3], dtype=torch.int32)
    set_mla_kv_buffer(buffer, loc, nope, rope)
    assert torch.equal(buffer[[7, 0, 3], 0], torch.cat([nope, rope], -1).view(3, 8))
    assert not buffer[[1, 2, 4, 5, 6, 8, 9]].any()
    got_nope, got_rope = torch.empty(3, 1, 6), torch.empty(3, 1, 2)
    get_mla_kv_buffer(buffer, loc, got_nope, got_rope)
    assert torch.equal(got_nope.view(3, 6), nope.view(3, 6))
    assert torch.equal(got_rope.view(3, 2), rope.view(3, 2))


def test_mla_rows_are_read_in_the_type_that_was_asked_for() -> None:
    buffer = torch.rand(4, 1, 3)
    nope, rope = torch.empty(1, 2, dtype=torch.bfloat16), torch.empty(1, 1, dtype=torch.bfloat16)
    get_mla_kv_buffer(buffer, torch.tensor([2]), nope, rope)
    assert torch.equal(nope[0], buffer[2, 0, :2].bfloat16())


def test_index_pages_hold_all_keys_then_all_scales() -> None:
    buffer = torch.zeros(3, PAGE * 132, dtype=torch.uint8)
    pool = SimpleNamespace(
        page_size=PAGE, index_head_dim=DIM, get_index_k_with_scale_buffer=lambda layer: buffer
    )
    loc = torch.tensor([PAGE + 5, 2 * PAGE + 63, 0])
    keys = torch.randn(3, DIM).to(torch.float8_e4m3fn)
    scales = torch.tensor([0.5, 2.0, 8.0])
    set_index_k_scale_buffer(pool, 0, loc, keys, scales)
    expected = torch.zeros_like(buffer)
    for slot, key, scale in zip(loc.tolist(), keys, scales, strict=True):
        page, row = divmod(slot, PAGE)
        expected[page, row * DIM : (row + 1) * DIM] = key.view(torch.uint8)
        first = PAGE * DIM + row * 4
        expected[page, first : first + 4] = scale[None].view(torch.uint8)
    assert torch.equal(buffer, expected)
    back = index_keys_at(buffer, loc, page_size=PAGE, dim=DIM)
    assert torch.equal(back, keys.float() * scales[:, None])
    assert back.dtype == torch.float32
