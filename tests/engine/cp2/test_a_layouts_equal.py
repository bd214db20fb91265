"""Sharding moves bytes and changes nothing: shared equals replicated to the last bit, at equal batches."""

from __future__ import annotations

import pytest
from harness.ask import ask_pair, prompt
from harness.layouts import equal_on_both

pytestmark = pytest.mark.stack

LENGTHS = (1, 5, 63, 64, 65, 127, 128, 300, 301, 1900)


@pytest.mark.parametrize("tokens", LENGTHS)
def test_one_prompt(cp2, tokens: int) -> None:
    ours, _ = equal_on_both(
        cp2.shared, cp2.replicated, cp2.decode, [prompt(tokens, tokens)], what=f"{tokens} tokens"
    )
    assert ours[0].prefill.cached == 0
    assert len(ours[0].decode.ids) == 8


def test_mixed_batch(cp2) -> None:
    """Three lengths in one batch, as far as the chunk goes."""
    prompts = [prompt(tokens, 7 * tokens) for tokens in (5, 63, 40)]
    before = len(cp2.shared.batches())
    equal_on_both(cp2.shared, cp2.replicated, cp2.decode, prompts, what="mixed")
    first = cp2.shared.batches()[before]
    assert first["extend"] == [5, 63], "the chunk of 128 tokens takes two of them (whole pages)"


def test_mixed_batch_of_three_with_prefixes(cp2) -> None:
    """Requests with and without a cached prefix, of different lengths, in one batch."""
    base = prompt(400, 99)
    equal_on_both(cp2.shared, cp2.replicated, cp2.decode, [base], what="base")
    prompts = [base[:128] + prompt(20, 1), prompt(9, 2), base[:384] + prompt(33, 3)]
    before = len(cp2.shared.batches())
    equal_on_both(cp2.shared, cp2.replicated, cp2.decode, prompts, what="mixed with prefixes")
    assert cp2.shared.batches()[before]["prefix"] == [128, 0], "prefixes are hits, in the order of requests"


@pytest.mark.parametrize("into_page", [0, 1, 31, 63])
def test_prefix_that_ends_inside_a_page(cp2, into_page: int) -> None:
    """A common prefix is a hit in whole pages only: it is rounded down."""
    base = prompt(400, 5)
    equal_on_both(cp2.shared, cp2.replicated, cp2.decode, [base], what="base")
    common = 3 * 64 + into_page
    # One token that differs, so that the common part ends exactly where it shall.
    fork = [*base[:common], (base[common] + 1) % 500, *prompt(80, common)]
    ours, _ = equal_on_both(cp2.shared, cp2.replicated, cp2.decode, [fork], what=f"{into_page} into a page")
    assert ours[0].prefill.cached == 192


@pytest.mark.parametrize("pages", range(7))
def test_hit_of_whole_pages(cp2, pages: int) -> None:
    base = prompt(450, 6)
    equal_on_both(cp2.shared, cp2.replicated, cp2.decode, [base], what="base")
    ours, _ = equal_on_both(
        cp2.shared,
        cp2.replicated,
        cp2.decode,
        [base[: pages * 64] + prompt(70, 60 + pages)],
        what=f"hit of {pages} pages",
    )
    assert ours[0].prefill.cached == pages * 64


def test_cached_prompt_again(cp2) -> None:
    """The same prompt cold and from the cache: the last page is always computed anew."""
    ids = prompt(300, 8)
    cold, _ = equal_on_both(cp2.shared, cp2.replicated, cp2.decode, [ids], what="cold")
    warm, _ = equal_on_both(cp2.shared, cp2.replicated, cp2.decode, [ids], what="warm")
    assert warm[0].prefill.cached == 256
    assert warm[0].decode.ids == cold[0].decode.ids


def test_prefetch_hits(cp2) -> None:
    """The next layer's prefix is fetched ahead, and never by the consumer."""
    before = cp2.shared.ranks()
    ask_pair(cp2.shared, cp2.decode, [prompt(700, 9)])
    after = cp2.shared.ranks()
    for old, new in zip(before, after, strict=True):
        grown = {
            name: new["gather"][name] - old["gather"][name] for name in ("hit", "late", "fallback", "bytes")
        }
        # 6 chunks, of which 5 have a prefix; 3 layers, MLA and index.
        assert grown["hit"] + grown["late"] == 5 * 3 * 2
        assert grown["fallback"] == 0
        assert grown["hit"] > 0
        assert grown["bytes"] > 0
