"""Waiting with a deadline: the one way in which anything here waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tests.cluster.harness.failure import ClusterError

T = TypeVar("T")


def until(
    look: Callable[[], T | None],
    what: str,
    *,
    seconds: float,
    every: float = 0.1,
    why_not: Callable[[], str] | None = None,
) -> T:
    """The first true answer of `look`. ClusterError with `what` and `why_not()` after `seconds`.

    An exception of `look` counts as no answer and is told at the end: things that start refuse connections.
    """
    deadline = time.monotonic() + seconds
    trouble = ""
    while True:
        try:
            answer = look()
            if answer:
                return answer
            trouble = ""
        except ClusterError:
            raise
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
        if time.monotonic() >= deadline:
            told = [f"{what}: not within {seconds:g} s", trouble, why_not() if why_not else ""]
            raise ClusterError("\n".join(line for line in told if line))
        time.sleep(every)
