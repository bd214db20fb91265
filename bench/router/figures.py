"""From raw figures of all rounds to medians, ratios and bounds; the JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench.router.prefix import Placement

PLAIT, FOUR, SGLANG = "plait", "plait x4", "sglang-router"
WORKING = "sglang-router, no PD"

Rounds = Sequence[Mapping[str, Mapping[str, Any]]]
"""For each round, by router, its figures (`phases.speed`)."""


class Bound(NamedTuple):
    """One figure of the report, with the most that it may be."""

    name: str
    value: float | None
    most: float

    @property
    def kept(self) -> bool:
        """Whether it is within its bound."""
        return self.value is not None and self.value <= self.most


class Cost(NamedTuple):
    """CPU of another router in microseconds for each request or chunk; `ratio`: Plait's over it."""

    cpu_us: float
    ratio: float


_BOUNDS = {
    "cpu_request_ratio": 0.5,
    "cpu_chunk_ratio": 0.5,
    "cpu_chunk_paced_ratio": 0.9,
    "ttft_added_ms": 1.0,
    "rss_mb": 80.0,
    "rss_growth_mb": 10.0,
    "four_workers_cpu_ratio": 1.1,
}


def of(rounds: Rounds, router: str, phase: str, *path: str) -> list[float]:
    """One figure of `router` in each round that has it."""
    found = []
    for each in rounds:
        value: Any = each.get(router, {}).get(phase)
        for name in path:
            value = None if value is None else value[name]
        if value is not None:
            found.append(float(value))
    return found


def ratio(rounds: Rounds, phase: str, *, above: str = PLAIT, below: str = SGLANG) -> float | None:
    """CPU of `above` over CPU of `below`, medians over the rounds; None where one was not measured."""
    costs = [of(rounds, name, phase, "cpu_us") for name in (above, below)]
    return median(costs[0]) / median(costs[1]) if all(costs) else None


def against(rounds: Rounds, costs: Mapping[str, float]) -> dict[str, Cost]:
    """By phase, what another router costs, and Plait's median over it."""
    found = {}
    for phase, cost in costs.items():
        if ours := of(rounds, PLAIT, phase, "cpu_us"):
            found[phase] = Cost(cost, median(ours) / cost)
    return found


def headline(rounds: Rounds, memory: Mapping[str, Mapping[str, float]]) -> dict[str, float | None]:
    """The figures that have bounds, and those that they are the worst of."""
    requests = {size: ratio(rounds, f"requests {size}") for size in ("1 KB", "200 KB")}
    four = {size: ratio(rounds, f"requests {size}", above=FOUR, below=PLAIT) for size in ("1 KB", "200 KB")}
    peaks = of(rounds, PLAIT, "memory_mb", "largest_peak") + of(rounds, FOUR, "memory_mb", "largest_peak")
    return {
        # The worse of both sizes of bodies.
        "cpu_request_ratio": _worst(requests),
        "cpu_chunk_ratio": ratio(rounds, "chunks"),
        "cpu_chunk_paced_ratio": ratio(rounds, "chunks paced"),
        "ttft_added_ms": median(of(rounds, PLAIT, "first token", "added_ms", "median")),
        "rss_mb": max([*peaks, memory[PLAIT]["peak"]]),
        "rss_growth_mb": memory[PLAIT]["growth"],
        "four_workers_cpu_ratio": _worst(four),
        "cpu_request_ratio_1kb": requests["1 KB"],
        "cpu_request_ratio_200kb": requests["200 KB"],
        "four_workers_cpu_ratio_1kb": four["1 KB"],
        "four_workers_cpu_ratio_200kb": four["200 KB"],
    }


def _worst(ratios: Mapping[str, float | None]) -> float | None:
    return max((r for r in ratios.values() if r is not None), default=None)


def bounds(figures: Mapping[str, float | None]) -> list[Bound]:
    """Each bound, with the figure that it is for."""
    return [Bound(name, figures[name], most) for name, most in _BOUNDS.items()]


def prefix_verdict(trace: Mapping[str, Mapping[str, Placement]]) -> dict[str, bool]:
    """By form and rival: Plait meets the owner at least as often, and its load is no more uneven."""
    return {
        f"{form}, {rival}": found[PLAIT].owner >= found[rival].owner
        and round(found[PLAIT].computed_worst_to_mean, 2) <= round(found[rival].computed_worst_to_mean, 2)
        for form, found in trace.items()
        for rival in (SGLANG, WORKING)
    }


def write(path: Path, report: Mapping[str, Any]) -> None:
    """Write `report` as JSON, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    new.replace(path)
