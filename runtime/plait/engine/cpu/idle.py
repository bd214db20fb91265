"""Schedulers that wait without a core: a machine without a GPU has few, and the forward needs them."""

from __future__ import annotations

import time
from typing import Any

from plait.engine.install import implements

_NAP_S = 0.002


@implements("managers.scheduler.Scheduler.maybe_send_health_check_signal")
def nap(self: Any) -> None:
    """The first thing a scheduler does when it has no batch to run. Stock goes round at once while anything
    waits (a transfer, a bootstrap), which on a GPU host costs a core that nobody else wants."""
    del self
    time.sleep(_NAP_S)
