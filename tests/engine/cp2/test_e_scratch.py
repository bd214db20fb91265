"""The dense scratch is a budget of admission: batches go as far as it goes, and all answers are right."""

from __future__ import annotations

import pytest
from harness import engines
from harness.ask import ask_pair, prompt
from harness.layouts import equal_on_both

pytestmark = pytest.mark.stack


def pages_of(batch: dict[str, list[int]]) -> int:
    """Dense pages of one formed batch."""
    return sum(-(-(p + e) // 64) for p, e in zip(batch["prefix"], batch["extend"], strict=True))


def test_long_prefixes_share_the_scratch(cp2) -> None:
    """Three cached prefixes of 1,600 tokens exceed the scratch of 4,096 together, two do not."""
    bases = [prompt(1600, 7000 + i) for i in range(3)]
    for ids in bases:
        ask_pair(cp2.shared, cp2.decode, [ids], new=1)
        ask_pair(cp2.replicated, cp2.decode, [ids], new=1)
    before = len(cp2.shared.batches())
    prompts = [ids + prompt(10, index) for index, ids in enumerate(bases)]
    ours, _ = equal_on_both(cp2.shared, cp2.replicated, cp2.decode, prompts, what="long prefixes", new=4)
    formed = cp2.shared.batches()[before:]
    assert [len(batch["extend"]) for batch in formed] == [2, 1], (
        "the chunk of 192 tokens had room for all three"
    )
    assert all(pages_of(batch) <= engines.CONTEXT // 64 for batch in formed)
    assert [pair.prefill.cached for pair in ours] == [1600] * 3


def test_every_batch_stayed_within_the_scratch(cp2) -> None:
    """Over everything that this folder has asked so far."""
    assert all(pages_of(batch) <= engines.CONTEXT // 64 for batch in cp2.shared.batches())
