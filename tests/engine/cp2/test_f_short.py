"""Short prompts on a context-parallel group: fewer tokens than ranks, and the generating health check."""

from __future__ import annotations

import httpx
import pytest
from harness.ask import ask_pair, prompt
from harness.layouts import equal_on_both

pytestmark = pytest.mark.stack


def test_one_token_prompts_in_a_row(cp2) -> None:
    for seed in range(5):
        ids = prompt(1, 8000 + seed)
        assert len(ask_pair(cp2.shared, cp2.decode, [ids], new=3)[0].decode.ids) == 3


def test_many_short_prompts_in_one_batch(cp2) -> None:
    """More requests than ranks, each of a token or two."""
    prompts = [prompt(1 + seed % 2, 8100 + seed) for seed in range(5)]
    # Each takes a page of the chunk's budget.
    equal_on_both(cp2.shared, cp2.replicated, cp2.decode, prompts, what="short prompts", new=3)


def test_generating_health_check(cp2) -> None:
    for engine in (cp2.shared, cp2.replicated, cp2.decode):
        answer = httpx.get(f"{engine.url}/health_generate", timeout=30)
        assert answer.status_code == 200, engine.name
    for rank in cp2.shared.account():
        assert rank["faults"] == []
