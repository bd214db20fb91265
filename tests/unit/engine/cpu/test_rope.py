"""Rotary embeddings without a GPU, and the padding of MoE widths that must not happen."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from plait.engine.cpu import rope


def test_keys_of_two_dimensions_are_rotated_as_one_head_each() -> None:
    seen: list[tuple[int, ...]] = []

    def original(
        _: object, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor, offsets: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(tuple(key.shape))
        return query + 1, key + 1

    query, flat = torch.zeros(5, 8, 64), torch.zeros(5, 64)
    for key in (flat, flat.unsqueeze(1)):
        q, k = rope.forward_native(original, None, torch.arange(5), query, key)
        assert q.shape == query.shape
        assert k.shape == key.shape
        assert (k == 1).all()
    assert seen == [(5, 1, 64), (5, 1, 64)]


@pytest.mark.usefixtures("engine")
@pytest.mark.timeout(600)
def test_plain_rope_comes_from_the_general_factory(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.layers.rotary_embedding import factory

    monkeypatch.setattr(factory, "get_rope", lambda *given: given)
    plain = rope.get_rope_cpu(lambda *_: "stock", 64, 64, 4096, 10000)
    assert plain == (64, 64, 4096, 10000, True)
    scaled = {"rope_type": "yarn"}
    assert rope.get_rope_cpu(lambda *given: given, 64, 64, 4096, 10000, True, scaled, "dtype") == (
        *(64, 64, 4096, 10000, True, scaled),
        "dtype",
    )


def test_moe_widths_stay_as_they_are() -> None:
    config = SimpleNamespace(moe_intermediate_size=100)
    assert rope.keep_config(config, None, 4) is config
