"""How the ranks of one host hand each other the descriptors of their memory: all of them map, or none does.

Rank 0 is the host of the meeting, the others are its guests. Two phases:

1. prepare: each guest says hello with its descriptors; rank 0 checks that all belong together and gives every
   rank everybody's. Each maps them and says that it is ready.
2. commit: when all are ready, rank 0 says so.

Whoever fails says why, and rank 0 passes it on, so that all raise the same `PeersCannotMapError`. A rank that
ends without a word is seen at once (its connection breaks), a rank that never comes after the timeout.
If rank 0 is killed between its words to two guests, one of them holds a mapping that the other has not: the
watch on the processes (`plait.peer.watch`) ends that one, as it does whenever a rank dies later on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from plait.peer.errors import PeersCannotMapError
from plait.peer.folder import MeetingPlace
from plait.peer.guest import Guest
from plait.peer.host import Host
from plait.peer.terms import Answer, Member, Offer, Side
from plait.peer.wire import close_all


class Meeting:
    """A meeting as its members use it: `exchange`, map, `commit`. Get one from `meet`."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self.committed = False

    def exchange(self, offer: Offer) -> tuple[Answer, ...]:
        """Phase 1. Raises PeersCannotMapError if a rank is missing, refuses or does not belong here."""
        return self._side.exchange(offer)

    def commit(self) -> None:
        """Phase 2. Raises PeersCannotMapError if a rank could not map; then undo what was mapped."""
        self._side.commit()
        self.committed = True


@contextmanager
def meet(folder: Path, *, me: Member, timeout_s: float) -> Iterator[Meeting]:
    """The meeting of a group's ranks in `folder`. Every wait in it ends after about `timeout_s`.

    An exception inside, before `commit`, is told to the other ranks as the reason of their refusal.
    Raises ValueError for a rank outside the group.
    """
    if not 0 <= me.rank < me.ranks:
        raise ValueError(f"rank is {me.rank}, of {me.ranks} ranks")
    place = MeetingPlace(folder, me.group)
    place.leave_note(me.rank)
    side: Side | None = None
    try:
        entered = time.time()
        kind = Host if me.rank == 0 else Guest
        side = kind(place, me, timeout_s=timeout_s, notes_since=entered - timeout_s)
        meeting = Meeting(side)
        try:
            yield meeting
            if not meeting.committed:
                raise PeersCannotMapError("left before all ranks were ready")
        except BaseException as error:
            if meeting.committed:
                raise
            if side.over:
                side.withdraw(str(error))
                raise
            # A reason of this rank's own: all ranks raise the same words.
            reason = f"rank {me.rank} (pid {os.getpid()}): {_reason(error)}"
            side.withdraw(reason)
            if isinstance(error, PeersCannotMapError | OSError | MemoryError):
                raise PeersCannotMapError(reason) from error
            raise
    finally:
        if side is not None:
            side.close()
            close_all(side.fds_held)
        place.forget_note(me.rank)


def _reason(error: BaseException) -> str:
    text = str(error)
    return text if isinstance(error, PeersCannotMapError) else f"{type(error).__name__}: {text}".rstrip(": ")
