"""What all sources share: handing lists over, and saying how they are, once for each change."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping

from plait.router.discovery.source import Take
from plait.router.discovery.target import Targets
from plait.router.pairing import Side

log = logging.getLogger("plait.router.discovery")


class BaseSource:
    """State of a source. `name` is how logs call it, for example a file's path."""

    def __init__(self, *, kind: str, name: str) -> None:
        self.kind = kind
        self.name = name
        self.problem = ""
        self.counts: Counter[str] = Counter()
        self._handed_over: Targets | None = None
        self._heard_at: float | None = None

    @property
    def synced(self) -> bool:
        """Whether a whole list has been handed over."""
        return self._handed_over is not None

    @property
    def age(self) -> float | None:
        """Seconds since the list was last known to be true, None before the first."""
        return None if self._heard_at is None else time.monotonic() - self._heard_at

    @property
    def skipped(self) -> Mapping[str, str]:
        """Candidates that are no targets, by name, and why not."""
        return {}

    def _hand_over(self, take: Take, targets: Targets) -> None:
        """Call `take` unless it has this list already."""
        if targets == self._handed_over:
            return
        take(targets)
        # A rollout changes the list hundreds of times; who comes and goes, the router's workers tell.
        level = logging.DEBUG if self.synced else logging.INFO
        self._handed_over = targets
        prefill = sum(t.side is Side.PREFILL for t in targets)
        log.log(level, "%s: %d prefill and %d decode engines", self.name, prefill, len(targets) - prefill)

    def _heard(self) -> None:
        """The list that was handed over is true at this moment."""
        self._heard_at = time.monotonic()

    def _well(self) -> None:
        """Whatever was the matter is over."""
        if self.problem:
            log.info("%s is well again", self.name)
        self.problem = ""

    def _failed(self, problem: str) -> None:
        """The list cannot be brought up to date; it stays as it is."""
        if problem != self.problem:
            kept = "the workers known so far stay" if self.synced else "no worker is known yet"
            log.warning("%s: %s (%s)", self.name, problem, kept)
        self.problem = problem
