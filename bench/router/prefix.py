"""Placement by prefix: the same conversations through each router, to prefill engines that keep caches.

Conversations begin with one of a few system prompts, some far more popular than others, and send their whole
history with every turn; many run at once. Each mock prefill engine keeps the pages of recent prompts, least
recently used first out, and computes one prompt after the other. Sizes: `go/cmd/load/prefix.go`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from bench.router.machine import Cores
from bench.router.mocks import mock_engines
from bench.router.phases import Errors
from bench.router.routers import KEY, Router, started
from bench.router.tools import load

PREFILL_ENGINES = 4
_DECODE_ENGINES = 2
_AT_ONCE = 96
_RATE = 80_000.0  # tokens/s of a prefill engine
_CACHE_PAGES = 2_048


class Placement(NamedTuple):
    """What placement was worth.

    `hit`: share of all prompt tokens that a cache held. `owner`: share of the requests with a cached prefix
    that went to an engine with the longest one. `*_worst_to_mean`, of the engines' load: tokens that each
    had to compute, in the whole trace, and for each 64 prompts in a row (mean of those); prompts that each
    was sent. `queued_ms`: mean wait for an engine.
    """

    hit: float
    owner: float
    computed_worst_to_mean: float
    window_worst_to_mean: float
    requests_worst_to_mean: float
    queued_ms: float
    latency_ms: float
    requests: int


def trace(
    routers: Sequence[Router],
    *,
    forms: Sequence[str],
    cores: Cores,
    conversations: int,
    errors: Errors,
) -> dict[str, dict[str, Placement]]:
    """By form of the requests, then by router: its placement. Each router starts with empty caches."""
    with mock_engines(
        core=cores.load,
        prefill=PREFILL_ENGINES,
        decode=_DECODE_ENGINES,
        prefill_rate=_RATE,
        cache_pages=_CACHE_PAGES,
    ) as mocks:
        found: dict[str, dict[str, Placement]] = {}
        for form in forms:
            for router in routers:
                with started(router, mocks, core=cores.router) as running:
                    mocks.reset()
                    seen = load(
                        "prefix", running.address, key=KEY, conns=_AT_ONCE, count=conversations, form=form
                    )
                    if seen["errors"]:
                        errors.append(f"{router.name}, prefix trace: {seen['error_examples']}")
                    found.setdefault(form, {})[router.name] = placement(
                        mocks.stats()["prefix"], latency_ms=seen["latency_ms"]["median"]
                    )
        return found


def placement(figures: dict[str, Any], *, latency_ms: float) -> Placement:
    """From the mock engines' counts."""
    requests = sum(figures["requests"])
    return Placement(
        hit=figures["hit_tokens"] / max(1, figures["tokens"]),
        owner=figures["owner_hits"] / max(1, figures["owned"]),
        computed_worst_to_mean=_worst_to_mean(figures["computed_tokens"]),
        window_worst_to_mean=figures["window_worst_to_mean"],
        requests_worst_to_mean=_worst_to_mean(figures["requests"]),
        queued_ms=1000 * sum(figures["queued_seconds"]) / max(1, requests),
        latency_ms=latency_ms,
        requests=requests,
    )


def _worst_to_mean(loads: list[int]) -> float:
    return max(loads) * len(loads) / max(1, sum(loads))
