"""Right against stock: SGLang at CP 1, float32 compute, the same prompts one by one."""

from __future__ import annotations

import pytest
from harness.ask import ask, ask_pair, prompt
from harness.compare import against_stock

pytestmark = pytest.mark.stack

LENGTHS = (1, 5, 63, 64, 65, 127, 128, 300, 301, 1900)


def test_prompts_against_stock(cp2, capsys) -> None:
    """Every length cold, then forks of one of them (hits): at most one prompt in ten may end early."""
    prompts = [prompt(tokens, 1000 + tokens) for tokens in LENGTHS]
    prompts += [prompts[-2][:cut] + prompt(50, cut) for cut in (64, 100, 192, 256, 300)]
    worst, ended = 0.0, 0
    for ids in prompts:
        expected = ask(cp2.stock, ids)
        pair = ask_pair(cp2.shared, cp2.decode, [ids])[0]
        assert pair.prefill.cached == expected.cached, f"{len(ids)} tokens: other hits than stock"
        found = against_stock(expected, pair.decode, what=f"{len(ids)} tokens")
        worst, ended = max(worst, found.worst), ended + found.ended
    with capsys.disabled():
        print(f"\n  against stock CP 1: worst {worst:.1e}, {ended} of {len(prompts)} ended at a small gap")
    assert ended <= len(prompts) / 10
