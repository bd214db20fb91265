"""What all mock engines of one test have seen: legs, rooms, aborts; and the hand-over between both sides.

A prefill engine sends nothing before decode has asked for its room, and decode starts nothing before prefill
has sent: so a side whose partner fails waits for ever, as real ones do, until the router ends it.
"""

from __future__ import annotations

import asyncio
import collections
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.router.mocks.engine import MockEngine

ANSWERED, DIED, CLOSED = "answered", "died", "closed"


@dataclass(slots=True, eq=False)
class Leg:
    """One prompt request as one engine got it, a batch with a room and an id for each prompt.

    Times are time.monotonic().
    `fault`: what the engine did to it, empty while it is healthy; `fault_at` when that could be noticed.
    `ended`: answered (in full), died (by the fault), closed (the router hung up), empty: under way.
    """

    engine: MockEngine
    path: str
    tag: str
    rooms: tuple[int, ...]
    rids: tuple[str, ...]
    at: float = field(default_factory=time.monotonic)
    raw: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    fault: str = ""
    fault_at: float | None = None
    ended: str = ""
    ended_at: float | None = None
    aborted_at: float | None = None
    sent: int = 0  # bytes of the answer's body that its connection has taken, or the kernel

    @property
    def rid(self) -> str:
        """The first prompt's id."""
        return self.rids[0]

    def end(self, how: str) -> None:
        """Note the end; the first one counts."""
        if not self.ended:
            self.ended, self.ended_at = how, time.monotonic()


class _Meeting:
    """A bootstrap room: where the two legs of one attempt find each other."""

    __slots__ = ("asked", "legs", "sent")

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.sent = asyncio.Event()
        self.legs = 0


class Book:
    """Shared by the engines of one test."""

    def __init__(self, *, keep_raw: bool = True) -> None:
        self.keep_raw = keep_raw
        self.open: set[Leg] = set()
        self.by_tag: dict[str, list[Leg]] = collections.defaultdict(list)
        self.reused_rooms: list[tuple[str, int]] = []
        self.foreign_aborts: set[tuple[str, str]] = set()  # (engine, rid) of aborts for what it never got
        self.acted: collections.Counter[tuple[str, str]] = collections.Counter()  # (engine's url, fault)
        self.total = 0
        self._rooms: set[tuple[str, int]] = set()
        self._meetings: dict[int, _Meeting] = {}
        self._rids: dict[tuple[str, str], Leg] = {}
        self._past: set[tuple[str, str]] = set()
        self._used: collections.Counter[tuple[str, str]] = collections.Counter()

    def enter(self, leg: Leg) -> None:
        """A prompt has arrived."""
        side = leg.engine.role
        self.total += 1
        self.open.add(leg)
        self.by_tag[leg.tag].append(leg)
        for room in leg.rooms:
            if (side, room) in self._rooms:
                self.reused_rooms.append((side, room))
            self._rooms.add((side, room))
        for rid in leg.rids:
            self._rids[leg.engine.name, rid] = leg
        self._meetings.setdefault(leg.rooms[0], _Meeting()).legs += 1

    def leave(self, leg: Leg) -> None:
        """A prompt has ended, however."""
        self.open.discard(leg)
        meeting = self._meetings.get(leg.rooms[0])
        if meeting is not None:
            meeting.legs -= 1
            if meeting.legs <= 0:
                del self._meetings[leg.rooms[0]]

    def abort(self, engine: MockEngine, rid: str) -> None:
        """An abort message has arrived."""
        leg = self._rids.get((engine.name, rid))
        if leg is not None:
            leg.aborted_at = leg.aborted_at or time.monotonic()
        elif (engine.name, rid) not in self._past:  # a router says it more than once, also much later
            self.foreign_aborts.add((engine.name, rid))

    def pardon(self) -> None:
        """What was told to engines that had not read their prompts may be told to them again."""
        self._past.update(self.foreign_aborts)
        self.foreign_aborts.clear()

    def meeting(self, room: int) -> _Meeting:
        """The room's meeting; its legs have entered."""
        return self._meetings[room]

    def due(self, tag: str, side: str, times: int) -> bool:
        """Whether a fault that happens `times` (0: always) to `tag` is due once more; counts it."""
        self._used[side, tag] += 1
        return not times or self._used[side, tag] <= times

    def forget(self) -> None:
        """Drop what is kept for each request, not what was found wrong nor which rooms were seen."""
        self.by_tag.clear()
        self._used.clear()
        self._past.update(self._rids)
        self._rids = {key: leg for key, leg in self._rids.items() if leg in self.open}
