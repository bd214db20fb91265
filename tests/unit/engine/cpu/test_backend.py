"""Sparse attention in torch against attention over exactly the selected rows."""

from __future__ import annotations

import math

import pytest
import torch

from plait.engine.cpu import backend
from plait.engine.cpu.backend import attend


def naive(
    q: torch.Tensor, rows: torch.Tensor, selected: torch.Tensor, scale: float, dim: int
) -> torch.Tensor:
    out = torch.zeros(q.shape[0], q.shape[1], dim)
    for token in range(q.shape[0]):
        slots = [slot for slot in selected[token].tolist() if slot >= 0]
        if not slots:
            continue
        kv = rows[slots, 0].double()
        for head in range(q.shape[1]):
            weights = (kv @ q[token, head].double() * scale).softmax(0)
            out[token, head] = (weights @ kv[:, :dim]).float()
    return out


@pytest.mark.parametrize("tokens", [1, 5, 300])
def test_it_attends_to_the_selected_rows_only(tokens: int) -> None:
    torch.manual_seed(tokens)
    rows = torch.randn(40, 1, 12)
    q = torch.randn(tokens, 3, 12)
    selected = torch.stack([torch.randperm(40)[:7] for _ in range(tokens)]).int()
    selected[torch.arange(tokens) % 3 == 1, 4:] = -1  # fewer than k
    selected[torch.arange(tokens) % 5 == 4] = -1  # padding
    found = attend(q, rows, selected, scale=0.3, value_dim=8)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, naive(q, rows, selected, scale=0.3, dim=8), rtol=1e-5, atol=1e-5)


def test_what_is_not_selected_never_reaches_the_sum_not_even_nan() -> None:
    """Row 0 and rows beyond the view may be anything: garbage of the dummy slot, or poison."""
    torch.manual_seed(0)
    rows = torch.full((6, 1, 4), math.nan)
    rows[3:5] = torch.randn(2, 1, 4)
    selected = torch.tensor([[3, 4, -1, -1], [4, -1, -1, -1], [-1, -1, -1, -1]], dtype=torch.int32)
    q = torch.randn(3, 2, 4)
    found = attend(q, rows, selected, scale=1.0, value_dim=4)
    torch.testing.assert_close(found, naive(q, rows, selected, scale=1.0, dim=4))
    assert not found[2].any()


def test_the_piecewise_sum_does_not_depend_on_the_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    q, rows = torch.randn(50, 2, 8), torch.randn(30, 1, 8)
    selected = torch.randint(0, 30, (50, 6)).int()
    whole = attend(q, rows, selected, scale=0.5, value_dim=8)
    monkeypatch.setattr(backend, "_ROWS_AT_ONCE", 7)
    torch.testing.assert_close(attend(q, rows, selected, scale=0.5, value_dim=8), whole)
