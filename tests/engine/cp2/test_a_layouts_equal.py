"""Sharding moves bytes and changes nothing: shared equals replicated to the last bit, at equal batches."""

from __future__ import annotations

import pytest
from harness import suite
from harness.ask import ask_pair, prompt

pytestmark = pytest.mark.stack

PARTS = [
    suite.single_prompts,
    suite.mixed_batches,
    suite.partial_pages,
    suite.whole_pages,
    suite.prompt_logprobs,
    suite.host_pages,
]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_part(cp2, part) -> None:
    part(cp2.groups)


def test_batches_are_formed_as_asked(cp2) -> None:
    """What the comparison rests on: three requests in the queue become the batches that the chunk allows."""
    base = prompt(400, 99)
    ask_pair(cp2.shared, cp2.decode, [base], new=1)
    before = len(cp2.shared.batches())
    prompts = [prompt(5, 1), base[:128] + prompt(20, 2), prompt(40, 3), prompt(70, 4)]
    ask_pair(cp2.shared, cp2.decode, prompts, new=1)
    formed = [(batch["prefix"], batch["extend"]) for batch in cp2.shared.batches()[before:]]
    assert formed == [([0, 128, 0], [5, 20, 40]), ([0], [70])], "a request takes whole pages of the chunk"


def test_cached_prompt_again(cp2) -> None:
    """The same prompt cold and from the cache: the last page is always computed anew."""
    groups, ids = cp2.groups, prompt(300, 8)
    assert groups.equal([ids], what="cold") == [0]
    assert groups.equal([ids], what="warm") == [256]


def test_prefetch_hits(cp2) -> None:
    """The next layer's prefix is fetched ahead, and never by the consumer."""
    before = cp2.shared.ranks()
    ask_pair(cp2.shared, cp2.decode, [prompt(700, 9)])
    after = cp2.shared.ranks()
    for old, new in zip(before, after, strict=True):
        grown = {
            name: new["gather"][name] - old["gather"][name] for name in ("hit", "late", "fallback", "bytes")
        }
        # 4 chunks, of which 3 have a prefix; 3 layers, MLA and index.
        assert grown["hit"] + grown["late"] == 3 * 3 * 2
        assert grown["fallback"] == 0
        assert grown["hit"] > 0
        assert grown["bytes"] > 0
        assert new["peers"]["state"] == "mapped"
        assert new["gather"]["batches"]["copy"] - old["gather"]["batches"].get("copy", 0) == 3
        # Prefixes of 3, 6 and 9 pages: too short for runs, so the kernel's list has them all.
        assert new["gather"]["fragment_pages"] - old["gather"]["fragment_pages"] == 2 * (3 + 6 + 9)
