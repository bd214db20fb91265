"""What a request asks its engines to do: the field `mock` of its body, which the router passes on untouched.

    {"mock": {"tag": "row-7", "prefill": "die-rst", "times": 1, "events": 3, "pause": 0.01}}

`prefill`, `decode`: the fault of that side (a name of `tests.router.mocks.faults`), none: it is healthy.
`times`: how often the fault happens to this tag (0: each time), so that a retry can meet a healthy engine.
`tag`: names the request over all its attempts. `events`, `pause`: length and pace of a streamed answer.
`size`: bytes of text in each event.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Plan(NamedTuple):
    """The parsed field. See the module."""

    tag: str = ""
    prefill: str = ""
    decode: str = ""
    times: int = 0
    events: int = 3
    pause: float = 0.0
    size: int = 2

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Plan:
        """The plan of a request body. A misspelt field raises TypeError: a test must not run without."""
        return cls(**body.get("mock", {}))

    def fault(self, side: str) -> str:
        """The fault that an engine of `side` is asked for, empty when it is to be healthy."""
        return self.prefill if side == "prefill" else self.decode

    def field(self) -> dict[str, Any]:
        """As it goes into a body."""
        return {"mock": self._asdict()}
