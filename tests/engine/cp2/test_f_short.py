"""Short prompts on a context-parallel group: fewer tokens than ranks, and the generating health check."""

from __future__ import annotations

import httpx
import pytest
from harness.ask import ask_pair, prompt
from harness.compare import against_stock

pytestmark = pytest.mark.stack


def test_one_token_prompts_in_a_row(cp2) -> None:
    for seed in range(5):
        ids = prompt(1, 8000 + seed)
        assert len(ask_pair(cp2.shared, cp2.decode, [ids], new=3)[0].decode.ids) == 3


def test_many_short_prompts(cp2) -> None:
    """More requests than ranks and than a batch takes, each of a token or two: as each of them alone."""
    prompts = [prompt(1 + seed % 2, 8100 + seed) for seed in range(7)]
    together = ask_pair(cp2.shared, cp2.decode, prompts, new=3)
    for ids, pair in zip(prompts, together, strict=True):
        alone = ask_pair(cp2.replicated, cp2.decode, [ids], new=3)[0]
        # Seven requests decoded together round otherwise than one does: stock alone differs from itself so.
        against_stock(alone.decode, pair.decode, what=f"{ids}", tolerance=2e-2)


def test_generating_health_check(cp2) -> None:
    for engine in (cp2.shared, cp2.replicated, cp2.decode):
        answer = httpx.get(f"{engine.url}/health_generate", timeout=30)
        assert answer.status_code == 200, engine.name
    for rank in cp2.shared.account():
        assert rank["faults"] == []
