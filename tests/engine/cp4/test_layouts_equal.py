"""Shared equals replicated to the last bit at CP 4, zigzag, chunks of 128 tokens, prefetch off."""

from __future__ import annotations

import pytest
from harness import suite

pytestmark = pytest.mark.stack


# Two minutes at this size; CP 2 has it in every run, CP 4 in the whole matrix.
PARTS = [
    pytest.param(part, id=name, marks=[pytest.mark.full] if name == "eviction" else [])
    for name, part in suite.parts()
]


@pytest.mark.parametrize("part", PARTS)
def test_part(groups, part) -> None:
    part(groups)


def test_without_prefetch_and_mapped_memory_all_comes_at_once(groups) -> None:
    """Prefix and chunk in one collective, nothing ahead; the outputs above were equal all the same."""
    for rank in groups.shared.ranks():
        gather = rank["gather"]
        assert gather["hit"] == gather["late"] == gather["fallback"] == 0
        assert gather["bytes"] > 0
        assert set(gather["batches"]) == {"none", "collective"}
        assert rank["peers"]["state"] == "off"


def test_capacity(groups, capsys) -> None:
    def tokens_per_byte(engine) -> float:
        status = engine.status()
        rank = status["ranks"][0]["bytes"]
        return status["capacity"]["tokens"] / (rank["mla"] + rank["index"])

    ratio = tokens_per_byte(groups.shared) / tokens_per_byte(groups.replicated)
    with capsys.disabled():
        print(f"\n  CP 4: {ratio:.2f} x the tokens at equal pool bytes per rank")
    assert ratio >= 3.7
