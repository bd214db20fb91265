"""Fading sums: who or what had which part of the recent requests. Counted in requests, so without a clock."""

from __future__ import annotations

from collections.abc import Iterable

_RESCALE = 1e100


class Shares:
    """Sums by key over about the last `window` additions: each addition weighs a little more than the last.

    Bounded: keys of which less than half a unit is left are dropped once there are many.
    """

    def __init__(self, window: int) -> None:
        self._growth = 1 + 1 / window
        self._many = 4 * window
        # What one unit weighs now. Growing it is the same as letting all that was added before fade.
        self._unit = 1.0
        self._sums: dict[int, float] = {}
        self._total = 0.0

    def __len__(self) -> int:
        """Keys held."""
        return len(self._sums)

    def add(self, key: int, amount: float = 1.0) -> None:
        """Add to a key's sum; all others fade by one step."""
        self._unit *= self._growth
        weight = amount * self._unit
        self._sums[key] = self._sums.get(key, 0.0) + weight
        self._total += weight
        if self._unit > _RESCALE:
            self._sums = {key: held / self._unit for key, held in self._sums.items()}
            self._total /= self._unit
            self._unit = 1.0
        if len(self._sums) > self._many:
            self._sums = {key: held for key, held in self._sums.items() if held >= self._unit / 2}
            self._total = sum(self._sums.values())

    def start(self, key: int) -> None:
        """Let a new key begin with the mean of the others, as if it had been there before."""
        if key not in self._sums and self._sums:
            self._sums[key] = self._total / len(self._sums)
            self._total += self._sums[key]

    def drop(self, key: int) -> None:
        """Forget a key."""
        self._total -= self._sums.pop(key, 0.0)

    def of(self, key: int) -> float:
        """What is left of a key's sum."""
        return self._sums.get(key, 0.0) / self._unit

    def share(self, key: int, *, least: float) -> float:
        """A key's part of the total, which counts as `least` units while it is smaller."""
        return self._sums.get(key, 0.0) / max(self._total, least * self._unit)

    def above_mean(self, keys: Iterable[int], slack: float) -> set[int]:
        """Those of `keys` whose sum is over `slack` units above their mean; unknown ones have the mean."""
        held = {key: self._sums[key] for key in keys if key in self._sums}
        if not held:
            return set()
        most = sum(held.values()) / len(held) + slack * self._unit
        return {key for key, value in held.items() if value > most}

    @property
    def total(self) -> float:
        """What is left of all sums."""
        return self._total / self._unit
