"""What the operator tells of itself, and what it and the cluster take of the machine."""

from __future__ import annotations

import os
import re
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.cluster.harness.processes import Process

MIB: Final = 1 << 20
_SERIES: Final = re.compile(r"plait_operator_(\w+?)(?:\{(.*)\})? ([0-9.e+-]+|\+?Inf)")
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')


@dataclass
class Figures:
    """The operator's metrics at one moment. `reactions`: events answered within so many seconds."""

    reactions: dict[float, float] = field(default_factory=dict)
    writes: dict[str, float] = field(default_factory=dict)
    looks: float = 0.0
    plan_s: float = 0.0
    results: dict[str, float] = field(default_factory=dict)
    polls: dict[str, float] = field(default_factory=dict)
    objects: dict[str, float] = field(default_factory=dict)
    depth: float = 0.0

    @classmethod
    def of(cls, operator: Process) -> Figures:
        url = operator.ready_url.replace("/readyz", "/metrics")
        told = cls()
        for line in urllib.request.urlopen(url, timeout=30).read().decode().splitlines():
            found = _SERIES.fullmatch(line)
            if found:
                told._take(found[1], dict(_LABEL.findall(found[2] or "")), float(found[3]))
        return told

    def _take(self, name: str, labels: dict[str, str], value: float) -> None:
        match name:
            case "reaction_seconds_bucket":
                self.reactions[float(labels["le"])] = value
            case "writes_total" if labels["verb"] != "lease":
                what = f"{labels['verb']} {labels['result']}"
                self.writes[what] = self.writes.get(what, 0.0) + value
            case "plan_seconds_sum":
                self.plan_s = value
            case "plan_seconds_count":
                self.looks = value
            case "reconciles_total":
                self.results[labels["result"]] = value
            case "router_polls_total":
                self.polls[labels["result"]] = value
            case "objects":
                self.objects[labels["kind"]] = value
            case "queue_depth":
                self.depth = value

    def __sub__(self, before: Figures) -> Figures:
        """What came in between; levels (objects, depth) as they are now."""
        return Figures(
            reactions=_less(self.reactions, before.reactions),
            writes=_less(self.writes, before.writes),
            looks=self.looks - before.looks,
            plan_s=self.plan_s - before.plan_s,
            results=_less(self.results, before.results),
            polls=_less(self.polls, before.polls),
            objects=self.objects,
            depth=self.depth,
        )

    @property
    def written(self) -> int:
        """Writes of all kinds, but not of news."""
        return int(sum(n for what, n in self.writes.items() if not what.startswith("event")))

    def answered(self) -> int:
        """Events that were answered by writes."""
        return int(self.reactions[float("inf")])

    def within(self, seconds: float) -> float:
        """The share of them that was answered within so long (a bucket's bound)."""
        return self.reactions[seconds] / self.reactions[float("inf")]

    def quantile(self, share: float) -> float:
        """Seconds, by the line between two buckets' bounds, as Prometheus does it."""
        sought = share * self.reactions[float("inf")]
        low, below = 0.0, 0.0
        for bound, count in sorted(self.reactions.items()):
            if count >= sought:
                if bound == float("inf"):
                    return low
                part = (sought - below) / (count - below) if count > below else 1.0
                return low + (bound - low) * part
            low, below = bound, count
        raise AssertionError("the last bucket holds all")


def _less(now: dict[Any, float], before: dict[Any, float]) -> dict[Any, float]:
    return {key: value - before.get(key, 0.0) for key, value in now.items()}


@dataclass(frozen=True)
class Usage:
    """Of one process: CPU seconds since its start, resident bytes now and at most."""

    cpu_s: float
    resident: int
    peak: int

    @classmethod
    def of(cls, pid: int) -> Usage:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        told = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
        )
        return cls(
            (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
            int(told["VmRSS"].split()[0]) * 1024,
            int(told["VmHWM"].split()[0]) * 1024,
        )


def machine_cpu() -> tuple[float, float]:
    """CPU seconds of all cores of the machine so far: in use, and in all."""
    with Path("/proc/stat").open() as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    per_s = os.sysconf("SC_CLK_TCK")
    return (sum(ticks) - ticks[3] - ticks[4]) / per_s, sum(ticks) / per_s


def slope(values: Iterable[float]) -> float:
    """By how much they grow from one to the next: the line of the least squares."""
    told = list(values)
    middle, mean = (len(told) - 1) / 2, sum(told) / len(told)
    spread = sum((n - middle) ** 2 for n in range(len(told)))
    return sum((n - middle) * (v - mean) for n, v in enumerate(told)) / spread if spread else 0.0
