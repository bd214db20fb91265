"""How many requests a key may make: a token bucket for each.

A bucket belongs to one process. A router of P processes (and R replicas) admits up to P x R times the rate of
a key whose requests spread over all of them; whoever needs a strict total divides the rate by that.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from typing import NamedTuple

from plait.router.config import ConfigError

_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)/(s|min)", re.ASCII)
_SECONDS = {"s": 1.0, "min": 60.0}
_MOST = 1_000_000
# What rounding may take from a token that has grown back whole.
_DUST = 1e-9


class Rate(NamedTuple):
    """`per_second` requests on average, and up to `burst` at once."""

    per_second: float
    burst: int

    @classmethod
    def parse(cls, rate: str, *, burst: str | None = None) -> Rate:
        """`N/s` or `N/min` (N may have decimals) -> Rate. `burst` None: N, but at least 1.

        Raises ConfigError for `rate` or `burst`.
        """
        found = _RATE.fullmatch(rate)
        if found is None:
            raise ConfigError("rate", rate, "write N/s or N/min, for example 20/s")
        count, period = float(found[1]), _SECONDS[found[2]]
        if not 0 < count <= _MOST:
            raise ConfigError("rate", rate, f"give more than 0 and at most {_MOST} requests")
        return cls(count / period, max(1, math.floor(count)) if burst is None else _burst(burst))


class TokenBucket:
    """Requests taken from a `Rate`. `clock` gives seconds and never goes back."""

    __slots__ = ("_at", "_burst", "_clock", "_level", "_per_second")

    def __init__(self, rate: Rate, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._per_second, self._burst = rate
        self._level = float(rate.burst)
        self._at = clock()

    @property
    def rate(self) -> Rate:
        """The rate in force."""
        return Rate(self._per_second, self._burst)

    @property
    def level(self) -> float:
        """Requests that may be made at once, now."""
        grown = (self._clock() - self._at) * self._per_second
        return min(self._burst, self._level + grown)

    def take(self) -> float:
        """0.0: one request is taken. Else nothing is, and this is how many seconds until one may be."""
        now = self._clock()
        level = self._level + (now - self._at) * self._per_second
        if level > self._burst:
            level = float(self._burst)
        self._at = now
        if level > 1.0 - _DUST:
            self._level = level - 1.0
            return 0.0
        self._level = level
        return (1.0 - level) / self._per_second

    def change(self, rate: Rate) -> None:
        """Go on at `rate`. What was used so far stays used."""
        self._level = min(float(rate.burst), self.level)
        self._at = self._clock()
        self._per_second, self._burst = rate


def _burst(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:8]) <= _MOST):
        raise ConfigError("burst", text, f"give a whole number from 1 to {_MOST}")
    return int(text)
