"""Circuit breaker of one worker: after failures it gets no requests for a while, then one as a probe.

    closed --failures--> open --wait over--> half-open --probe succeeded--> closed
                           ^----------------probe failed (waits longer)------'

Each process has its own. A request that began before the last change of state says nothing about the
present one: so each request carries the ticket that it was given, and stale tickets are ignored.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class BreakerState(StrEnum):
    """Closed lets all requests through, open none, half-open one at a time."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(frozen=True, kw_only=True)
class BreakerRules:
    """When a breaker opens, and for how long.

    It opens after `failures` in a row, or when of the requests that ended within the last `window` seconds,
    if they are `at_least` so many, the share `ratio` failed. It stays open for `wait` seconds, doubled after
    each failed probe up to `longest`, each time changed by up to the share `jitter` either way, so that the
    processes of a deployment do not probe together.
    """

    failures: int = 3
    ratio: float = 0.5
    at_least: int = 10
    window: float = 10.0
    wait: float = 5.0
    longest: float = 60.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        for name in ("failures", "at_least"):
            if getattr(self, name) < 1:
                raise ValueError(f"breaker {name} = {getattr(self, name)}: give a number of at least 1")
        if not 0 < self.ratio <= 1:
            raise ValueError(f"breaker ratio = {self.ratio}: give a share above 0, at most 1")
        if not 0 <= self.jitter < 1:
            raise ValueError(f"breaker jitter = {self.jitter}: give a share from 0 to below 1")
        if not (self.window > 0 and 0 < self.wait <= self.longest):
            raise ValueError(
                f"breaker window = {self.window}, wait = {self.wait}, longest = {self.longest}: "
                "give seconds above 0, wait not above longest"
            )


_SLICES = 10


class Breaker:
    """One worker's breaker.

    For each request: `allow` to see whether it may go, `take` when it goes, then with the ticket exactly one
    of `succeeded`, `failed` and `abandoned`. Only failures that are the worker's own count: a 4xx is a
    success, a client that left or a leg ended for the other side's sake is abandoned.

    `closed` is a plain attribute for the hot path: `breaker.closed or breaker.allow()`. `opened` counts how
    often it opened. Not thread-safe: for one event loop.
    """

    __slots__ = (
        "_bad",
        "_clock",
        "_good",
        "_health_was_bad",
        "_in_a_row",
        "_probing",
        "_random",
        "_rules",
        "_slice",
        "_slice_of",
        "_ticket",
        "_until",
        "_wait",
        "closed",
        "opened",
    )

    def __init__(
        self,
        rules: BreakerRules | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._rules = rules or BreakerRules()
        self._clock = clock
        self._random = rng or random.Random()
        self._slice = self._rules.window / _SLICES
        self._ticket = 0
        self._probing = False
        self._health_was_bad = False
        self._wait = self._until = 0.0
        self._in_a_row = 0
        # Outcomes of the last `window` seconds by slices of it; `_slice_of` says which slice of time each is.
        self._good = [0] * _SLICES
        self._bad = [0] * _SLICES
        self._slice_of = [-1] * _SLICES
        self.closed = True
        self.opened = 0

    @property
    def state(self) -> BreakerState:
        """The state now."""
        if self.closed:
            return BreakerState.CLOSED
        return BreakerState.OPEN if self._clock() < self._until else BreakerState.HALF_OPEN

    @property
    def retry_in(self) -> float:
        """Seconds until it lets a probe through; 0 when it is not open."""
        return 0.0 if self.closed else max(0.0, self._until - self._clock())

    def allow(self) -> bool:
        """Whether a request may go to the worker now. Changes nothing."""
        return self.closed or (not self._probing and self._clock() >= self._until)

    def take(self) -> int:
        """A request goes to the worker; its ticket. In half-open it is the probe, and others wait for it.

        Call it right after `allow`, with no await between them.
        """
        if not self.closed:
            self._probing = True
            self._ticket += 1
        return self._ticket

    def succeeded(self, ticket: int) -> None:
        """The worker did its part. Ends a half-open state."""
        if ticket != self._ticket:
            return
        if not self.closed:
            self._close()
            return
        self._in_a_row = 0
        self._good[self._now_slice()] += 1

    def failed(self, ticket: int) -> None:
        """The worker is to blame. Opens the breaker if that was enough."""
        if ticket != self._ticket:
            return
        rules = self._rules
        if not self.closed:
            self._open(min(self._wait * 2, rules.longest))
            return
        self._in_a_row += 1
        self._bad[self._now_slice()] += 1
        if self._in_a_row >= rules.failures or self._too_many():
            self._open(rules.wait)

    def abandoned(self, ticket: int) -> None:
        """The request ended without a judgement on the worker. Frees the probe's place for the next."""
        if ticket == self._ticket:
            self._probing = False

    def checked(self, *, healthy: bool) -> None:
        """A health check ended. One that is good again after bad ones ends the wait: a probe may go now.

        It closes nothing by itself: a worker can be healthy and fail every request. And a check that was
        good all along shortens nothing, else such a worker would be probed at each check.
        """
        if healthy and self._health_was_bad and not self.closed:
            self._until = min(self._until, self._clock())
        self._health_was_bad = not healthy

    def reset(self) -> None:
        """The worker restarted: what was known of it is void."""
        self._health_was_bad = False
        self._close()

    def _close(self) -> None:
        self.closed = True
        self._ticket += 1
        self._probing = False
        self._in_a_row = 0
        self._slice_of = [-1] * _SLICES

    def _open(self, wait: float) -> None:
        self.closed = False
        self.opened += 1
        self._ticket += 1
        self._probing = False
        self._wait = wait
        spread = self._rules.jitter
        self._until = self._clock() + wait * self._random.uniform(1 - spread, 1 + spread)

    def _now_slice(self) -> int:
        now = int(self._clock() / self._slice)
        at = now % _SLICES
        if self._slice_of[at] != now:
            self._slice_of[at] = now
            self._good[at] = self._bad[at] = 0
        return at

    def _too_many(self) -> bool:
        oldest = int(self._clock() / self._slice) - _SLICES
        fresh = [at for at in range(_SLICES) if self._slice_of[at] > oldest]
        bad = sum(self._bad[at] for at in fresh)
        ended = bad + sum(self._good[at] for at in fresh)
        return ended >= self._rules.at_least and bad >= self._rules.ratio * ended
