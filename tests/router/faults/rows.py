"""The rows of the fault table, and what must come of each.

Side x fault (which has its phase) x streamed or not x each time or once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.router.mocks.answers import CHAT, COMPLETIONS, GENERATE
from tests.router.mocks.faults import FAULTS, Phase

SIDES = ("prefill", "decode")
# Faults of a whole engine, set by the test: its port is closed; it takes no connection; it reads no body.
WHOLE_ENGINE = ("refuse", "clog", "never-read")
# Only a stream can have them: nothing else has an end of its own, or events.
_STREAMED_ONLY = ("clean-end", "error-mid", "aborted-mid")
_ABORTED = frozenset(("error-first", "aborted-first", "error-mid", "aborted-mid"))
_LATE = frozenset(("hang", "drip-headers", "hang-after", "stall-mid", "never-read", "clog"))
# Both sides are silent, and nothing that a router can see says whose fault it is: decode takes nothing, so
# prefill sends nothing.
_EITHER = frozenset((("decode", "never-read"), ("decode", "clog")))


class Row(NamedTuple):
    """`once`: the fault happens to the first attempt only. `path`: the route."""

    side: str
    fault: str
    streamed: bool
    once: bool
    path: str

    @property
    def name(self) -> str:
        """Its id in reports."""
        how = "streamed" if self.streamed else "whole"
        return f"{self.side}-{self.fault}-{how}-{'once' if self.once else 'each'}"

    @property
    def other(self) -> str:
        """The side that is well."""
        return "decode" if self.side == "prefill" else "prefill"

    @property
    def whole_engine(self) -> bool:
        """The test does it to the engines; they know nothing of the request."""
        return self.fault in WHOLE_ENGINE

    @property
    def phase(self) -> Phase:
        """When it happens."""
        return FAULTS[self.fault].phase if self.fault in FAULTS else Phase.BEFORE

    @property
    def started(self) -> bool:
        """The client has a part of its stream when it happens."""
        if not self.streamed:
            return False
        if self.side == "decode":
            return self.phase is Phase.MID
        return self.phase is Phase.LATE

    @property
    def status(self) -> int:
        """The engine's own HTTP status, 0 where the fault is another one."""
        return int(self.fault.removeprefix("status-")) if self.fault.startswith("status-") else 0

    @property
    def refused(self) -> bool:
        """The engine says that the request is wrong: nobody is at fault, and another try changes nothing."""
        return 400 <= self.status < 500

    @property
    def slow(self) -> bool:
        """It is noticed by a deadline."""
        return self.fault in _LATE

    @property
    def retried(self) -> bool | None:
        """Whether another pair is tried; None: only if there is time left, which the deadlines decide."""
        if self.refused or self.started:
            return False
        return None if self.slow else True

    @property
    def blames_one_side(self) -> bool:
        """Whether a router can know who is at fault."""
        return (self.side, self.fault) not in _EITHER

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of failure that the metric may say."""
        if self.fault == "refuse":
            return frozenset(("refused",))
        if self.fault == "clog":
            return frozenset(("refused", "timeout"))
        if self.status or self.fault in ("redirect", "late-500"):
            return frozenset(("status",))
        if self.fault in _ABORTED:
            return frozenset(("aborted",))
        if self.slow:
            return frozenset(("timeout",))
        if self.fault == "endless-headers":
            return frozenset(("broken", "too_large"))
        return frozenset(("broken",))

    @property
    def statuses(self) -> frozenset[int]:
        """What the client's status may be, where no retry helps."""
        if self.started:
            return frozenset((200,))
        if self.refused or self.status == 503:
            return frozenset((self.status,))
        if self.fault in ("refuse", "clog"):
            return frozenset((502, 504))
        return frozenset((504,)) if self.slow else frozenset((502,))


def rows() -> Iterator[Row]:
    """The whole table."""
    paths = (CHAT, COMPLETIONS, GENERATE)
    number = 0
    for side in SIDES:
        for fault in (*WHOLE_ENGINE, *FAULTS):
            if fault in FAULTS and not FAULTS[fault].guilty:
                continue
            late = fault in FAULTS and FAULTS[fault].phase is Phase.LATE
            if late and side == "decode":
                continue
            for streamed in (False, True):
                # A whole answer is out before prefill can fail late.
                if not streamed and (late or fault in _STREAMED_ONLY):
                    continue
                for once in (False, True):
                    if once and (fault in WHOLE_ENGINE or late):
                        continue
                    # Every fault meets every route over the table; each row has one.
                    yield Row(side, fault, streamed, once, paths[number % 3])
                    number += 1
