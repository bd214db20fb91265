"""What one process of a router says about itself: limits, breakers and queues are per process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from plait.router.tally import Row

if TYPE_CHECKING:
    from plait.router.state import RouterState


@dataclass(frozen=True, kw_only=True)
class Report:
    """By worker address: `legs` under way (workers that are listed no more included), `breakers`.

    `tallies`: all that it has counted.
    """

    pid: int
    in_flight: int
    queued: int
    pairs: int = 0
    draining: bool = False
    legs: Mapping[str, int] = field(default_factory=dict)
    breakers: Mapping[str, str] = field(default_factory=dict)
    tallies: list[Row] = field(default_factory=list)

    def encode(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def decode(cls, values: dict[str, Any]) -> Report:
        """What `encode` gave, after JSON, which knows no tuples (compiled code takes no list for one)."""
        rows = [(name, tuple(labels), numbers) for name, labels, numbers in values["tallies"]]
        return cls(**{**values, "tallies": rows})


def report(state: RouterState) -> Report:
    """Of this process, now."""
    workers = state.workers
    legs: dict[str, int] = {}
    for worker in (*workers.workers, *workers.leaving):
        legs[worker.url] = legs.get(worker.url, 0) + worker.in_flight
    return Report(
        pid=os.getpid(),
        in_flight=state.lifecycle.in_flight,
        queued=workers.line.waiting,
        pairs=len(workers.pairs()),
        draining=state.lifecycle.draining,
        legs=legs,
        breakers={worker.url: str(worker.breaker.state) for worker in workers.workers},
        tallies=state.metrics.tallies.rows(),
    )
