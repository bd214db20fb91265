"""Page rows: the same memory as bytes."""

from __future__ import annotations

import pytest
import torch

from plait.gather import page_rows


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.float32, torch.uint8])
def test_rows_are_the_buffer_itself(dtype: torch.dtype) -> None:
    buffer = torch.zeros(6 * 4, 1, 3).to(dtype)
    rows = page_rows(buffer, 6)
    assert rows.shape == (6, 4 * 3 * dtype.itemsize)
    assert rows.dtype == torch.uint8
    rows[2] = 1
    changed = buffer.view(torch.uint8).reshape(24, -1).any(1).nonzero().flatten().tolist()
    assert changed == [8, 9, 10, 11]


def test_a_buffer_that_is_not_pages_is_refused() -> None:
    with pytest.raises(ValueError, match="24 bytes does not divide into 5 pages"):
        page_rows(torch.zeros(6), 5)
    with pytest.raises(ValueError, match="contiguous"):
        page_rows(torch.zeros(4, 4).T, 4)
