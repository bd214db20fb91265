"""Quantisation and selection of the reference indexer."""

from __future__ import annotations

import torch

from plait.engine.cpu.indexer import quantize, top_k


def test_ties_go_to_the_earlier_token_whatever_the_width() -> None:
    logits = torch.zeros(2, 50)
    logits[0, 30] = 1.0
    values, indices = top_k(logits, 4)
    assert indices.tolist() == [[30, 0, 1, 2], [0, 1, 2, 3]]
    assert values.tolist() == [[1.0, 0.0, 0.0, 0.0], [0.0] * 4]
    for width in (4, 5, 31, 50):
        assert top_k(logits[1:, :width], 4)[1].tolist() == [[0, 1, 2, 3]]


def test_fewer_tokens_than_k_are_all_selected() -> None:
    values, indices = top_k(torch.tensor([[1.0, 3.0]]), 4)
    assert (values.tolist(), indices.tolist()) == ([[3.0, 1.0]], [[1, 0]])


def test_selection_is_by_value_then_position() -> None:
    torch.manual_seed(0)
    logits = torch.randint(0, 6, (20, 40)).float()  # many ties
    _, indices = top_k(logits, 10)
    for row, found in zip(logits.tolist(), indices.tolist(), strict=True):
        assert found == sorted(range(40), key=lambda i: (-row[i], i))[:10]


def test_values_come_back_within_fp8_and_blocks_have_their_own_scale() -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 2, 256) * torch.tensor([1.0, 1000.0]).repeat_interleave(128)
    values, scale = quantize(x)
    assert values.dtype == torch.float8_e4m3fn
    assert scale.shape == (5, 2, 2)
    back = values.float().unflatten(-1, (2, 128)) * scale[..., None]
    torch.testing.assert_close(back.flatten(-2), x, rtol=0.07, atol=float(scale.max()) * 0.01)
    assert (values.float().abs().unflatten(-1, (2, 128)).amax(-1) == 448).all(), "the range is used"


def test_a_scale_format_rounds_scales_up_to_powers_of_two() -> None:
    x = torch.linspace(-3, 5, 128)[None]
    exact, rounded = quantize(x)[1], quantize(x, 128, "ue8m0")[1]
    assert rounded.log2() == rounded.log2().round()
    assert exact <= rounded < 2 * exact


def test_zeros_stay_zeros() -> None:
    values, scale = quantize(torch.zeros(1, 128))
    assert not values.float().any()
    assert (scale > 0).all()
