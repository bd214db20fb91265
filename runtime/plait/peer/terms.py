"""What is said at a meeting of ranks: who comes, with what, and what the others see of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from plait.peer.errors import PeersCannotMapError

VERSION = 1
"""Of the messages. Ranks with another version are refused."""

Note = dict[str, str | int]
"""What a rank tells the others beside its descriptors (JSON)."""


class Member(NamedTuple):
    """Who comes to a meeting: `rank` of `ranks` in the group that is called `group`."""

    group: str
    rank: int
    ranks: int


class Offer(NamedTuple):
    """What a rank brings. digest: of the layout, equal on all. fds: stay the rank's own."""

    digest: str
    note: Note
    fds: tuple[int, ...]


class Answer(NamedTuple):
    """What a rank brought, as the others see it. fds: open until the meeting is over (dup what must stay)."""

    rank: int
    pid: int
    note: Note
    fds: tuple[int, ...]


class Side(Protocol):
    """One side of a meeting.

    fds_held: descriptors that came, which the meeting closes at its end.
    over: whether the meeting has failed by what was said in it; the exception's words are then for all.
    """

    fds_held: list[int]
    over: bool

    def exchange(self, offer: Offer) -> tuple[Answer, ...]:
        """Give `offer`, and return what all ranks brought, in rank order."""

    def commit(self) -> None:
        """Say that this rank is ready; return once all are."""

    def withdraw(self, reason: str) -> None:
        """Tell the others why this rank cannot. Raises nothing."""

    def close(self) -> None:
        """Close the sockets."""


def hello(me: Member, offer: Offer | None, *, refusal: str | None = None) -> dict[str, object]:
    """A guest's first message."""
    return {
        "version": VERSION,
        "group": me.group,
        "rank": me.rank,
        "ranks": me.ranks,
        "pid": os.getpid(),
        "digest": offer.digest if offer else "",
        "note": offer.note if offer else {},
        "refusal": refusal,
    }


def split_fds(fds: Sequence[int], counts: Sequence[int]) -> list[tuple[int, ...]]:
    """`fds` of all ranks, one after another, cut by rank. Raises PeersCannotMapError if the counts differ."""
    if sum(counts) != len(fds):
        raise PeersCannotMapError(f"{len(fds)} descriptors arrived, {sum(counts)} were sent")
    parts, at = [], 0
    for count in counts:
        parts.append(tuple(fds[at : at + count]))
        at += count
    return parts
