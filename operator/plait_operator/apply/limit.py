"""How many writes a second one operator may send."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Limiter:
    """A bucket of `burst` permits that fills at `rate` a second. Threads wait in the order they came.

    The API server has its own limits (priority and fairness), but those punish every client of the same
    level; this one keeps a burst of a thousand deployments from being that client.
    """

    def __init__(
        self,
        *,
        rate: float,
        burst: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if rate <= 0 or burst < 1:
            raise ValueError(f"rate {rate} and burst {burst}: a rate over 0 and a burst of at least 1 needed")
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._free_at = clock() - burst / rate

    def take(self) -> float:
        """Wait for a permit; seconds waited."""
        with self._lock:
            now = self._clock()
            # When the permit given out now is due; an idle bucket holds `burst` and no more.
            self._free_at = max(self._free_at, now - self._burst / self._rate) + 1 / self._rate
            wait = self._free_at - now
        if wait > 0:
            self._sleep(wait)
        return max(0.0, wait)
