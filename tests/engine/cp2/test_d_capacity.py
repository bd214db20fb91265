"""Capacity from the allocated tensors, and a full cache that evicts, waits and stays right."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from harness import engines
from harness.ask import ask_pair, prompt
from harness.engines import Engine

pytestmark = pytest.mark.stack


def tokens_per_byte(engine: Engine) -> float:
    """Tokens of the group over KV-pool tensor bytes of one rank (the scratch is not part of the pool)."""
    status = engine.status()
    rank = status["ranks"][0]["bytes"]
    return float(status["capacity"]["tokens"] / (rank["mla"] + rank["index"]))


def test_twice_the_tokens_at_equal_bytes(cp2, capsys) -> None:
    ratio = tokens_per_byte(cp2.shared) / tokens_per_byte(cp2.replicated)
    scratch = cp2.shared.status()["ranks"][0]["bytes"]["scratch"]
    with capsys.disabled():
        print(f"\n  CP 2: {ratio:.2f} x the tokens at equal pool bytes per rank (scratch: {scratch} bytes)")
    assert ratio >= 1.9


def test_fill_the_cache(cp2) -> None:
    """Distinct prompts until the pool is full: all its tokens are held, and found again."""
    prompts = [prompt(2048, 4000 + i) for i in range(4)]
    for ids in prompts[:3]:
        ask_pair(cp2.shared, cp2.decode, [ids], new=1)
    ranks = cp2.shared.ranks()
    held = sum(rank["pages"]["used"] for rank in ranks) * 64
    assert held == 3 * 2048
    # The fourth fits to the last page, less what admission keeps back (a page, and a token to come).
    ask_pair(cp2.shared, cp2.decode, [prompts[3][: 2048 - 128]], new=1)
    held = sum(rank["pages"]["used"] for rank in cp2.shared.ranks()) * 64
    assert held == engines.TOKENS - 128
    again = [ask_pair(cp2.shared, cp2.decode, [ids], new=1)[0] for ids in prompts[:3]]
    assert [pair.prefill.cached for pair in again] == [2048 - 64] * 3


def test_over_capacity_evicts_and_waits(cp2) -> None:
    """Concurrent long prompts, over the pool's size: none hangs, none is wrong, the accounts are right."""
    prompts = [prompt(1900 + 100 * i, 5000 + i) for i in range(6)]
    before = [rank["integrity"]["failures"] for rank in cp2.shared.ranks()]
    with ThreadPoolExecutor(len(prompts)) as pool:
        answers = list(
            pool.map(lambda ids: ask_pair(cp2.shared, cp2.decode, [ids], new=2, together=False)[0], prompts)
        )
    for rank in cp2.shared.account():
        assert rank["faults"] == []
    assert [rank["integrity"]["failures"] for rank in cp2.shared.ranks()] == before
    # Alone, cold, in the other layout: the same tokens (batches differ, so to the tolerance of batching).
    for index in (0, 5):
        alone = ask_pair(cp2.replicated, cp2.decode, [prompts[index]], new=2)[0]
        assert alone.decode.ids == answers[index].decode.ids
    cp2.shared.flush()
    again = ask_pair(cp2.shared, cp2.decode, [prompts[0]], new=2)[0]
    alone = ask_pair(cp2.replicated, cp2.decode, [prompts[0]], new=2)[0]
    assert again.decode.ids == alone.decode.ids


def test_lane_skew_never_fails(cp2) -> None:
    """One-page prompts all start on the lane with most room; a long one then takes what is left anywhere."""
    for index in range(20):
        ask_pair(cp2.shared, cp2.decode, [prompt(65, 6000 + index)], new=1, together=False)
    ids = prompt(2000, 6100)
    ours = ask_pair(cp2.shared, cp2.decode, [ids], new=2)[0]
    theirs = ask_pair(cp2.replicated, cp2.decode, [ids], new=2)[0]
    assert ours.decode.ids == theirs.decode.ids
    for rank in cp2.shared.ranks():
        assert rank["split"]["max_tokens"] >= rank["split"]["mean_tokens"] > 0


def test_impossible_prompt_names_the_limit(cp2) -> None:
    """A prompt beyond the context length: the engine's 400, passed on as it is, names the limit."""
    answer = httpx.post(
        f"{cp2.stack.router}/v1/completions",
        json={"model": "tiny", "prompt": prompt(engines.CONTEXT + 100, 1), "max_tokens": 4},
        timeout=60,
    )
    assert answer.status_code == 400, answer.text
    assert str(engines.CONTEXT) in answer.json()["message"]
    cp2.stack.freed(within_s=2)
