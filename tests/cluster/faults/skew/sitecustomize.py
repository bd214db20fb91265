"""A wrong clock for one Python process: everything that asks Python for the time of day is SKEW_HOURS off.

Steady clocks are left alone, as they are on a machine whose time was set wrong.
"""

from __future__ import annotations

import datetime as dates
import os
import time
from typing import Any

AHEAD = float(os.environ["SKEW_HOURS"]) * 3600
_time, _Date = time.time, dates.datetime


class Skewed(_Date):
    """datetime with another now."""

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return cls.fromtimestamp(_time() + AHEAD, tz)


time.time = lambda: _time() + AHEAD
dates.datetime = Skewed  # type: ignore[misc]
