"""How long to wait before the next attempt."""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """Doubles from `first_s` to `most_s`; each wait is a random part of that, at least half.

    Random, for all watches lose the API server at the same moment and must not come back at the same one.
    """

    def __init__(
        self, *, first_s: float = 0.2, most_s: float = 15.0, rand: Callable[[], float] = random.random
    ) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._rand = rand
        self.failures = 0

    def next(self) -> float:
        """Count a failure; seconds to wait after it."""
        full = min(self._most_s, self._first_s * 2.0 ** min(self.failures, 32))
        self.failures += 1
        return full * (0.5 + 0.5 * self._rand())

    def reset(self) -> None:
        """All is well: the next failure is a first one."""
        self.failures = 0
