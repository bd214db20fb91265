"""A guest's side of a meeting (ranks from 1 on)."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from typing import NoReturn

from plait.peer.errors import PeersCannotMapError
from plait.peer.folder import MeetingPlace
from plait.peer.terms import Answer, Member, Offer, hello, split_fds
from plait.peer.wire import Deadline, Message, WireError, connect, receive, send

MARGIN_S = 2.0
"""How much longer a guest waits than its host does: the host's reason, which names the missing rank, is to
reach it before its own patience ends."""
_RETRY_S = 0.02


class Guest:
    """See `plait.peer.terms.Side`."""

    def __init__(self, place: MeetingPlace, me: Member, *, timeout_s: float, notes_since: float) -> None:
        self._place, self._me, self._timeout = place, me, timeout_s
        self._notes_since = notes_since
        self._deadline = Deadline(timeout_s)
        self._sock: socket.socket | None = None
        self.over = False
        self.fds_held: list[int] = []

    def exchange(self, offer: Offer) -> tuple[Answer, ...]:
        sock = self._connected()
        # The host may have refused this rank before it read this: its reason then waits to be read.
        with suppress(WireError):
            send(sock, hello(self._me, offer), offer.fds, timeout_s=self._timeout)
        said, fds = self._answer(sock, "all")
        ranks = said["ranks"]
        parts = split_fds(fds, [entry["fds"] for entry in ranks])
        return tuple(
            Answer(
                entry["rank"],
                entry["pid"],
                entry["note"],
                offer.fds if entry["rank"] == self._me.rank else own,
            )
            for entry, own in zip(ranks, parts, strict=True)
        )

    def commit(self) -> None:
        sock = self._connected()
        with suppress(WireError):  # as above
            send(sock, {"ready": True}, timeout_s=self._timeout)
        self._answer(sock, "commit")

    def withdraw(self, reason: str) -> None:
        if self.over:
            return
        self.over = True
        try:
            if self._sock is None:
                send(self._connected(), hello(self._me, None, refusal=reason), timeout_s=self._timeout)
            else:
                send(self._sock, {"ready": False, "refusal": reason}, timeout_s=self._timeout)
        except (WireError, PeersCannotMapError, OSError):
            pass  # then the host has ended, and has nobody to pass it on to

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()

    def _connected(self) -> socket.socket:
        while self._sock is None:
            self._sock = connect(str(self._place.socket), timeout_s=self._deadline.left())
            if self._sock is not None:
                break
            if self._place.on_another_host(0, since=self._notes_since):
                self._refused("rank 0 is on another host: memory can be mapped within one host only")
            if not self._deadline.left():
                self._refused(
                    f"rank 0 did not open the meeting in {self._place.socket.parent} within "
                    f"{self._timeout:g} s (is it on another host?)"
                )
            time.sleep(_RETRY_S)
        return self._sock

    def _answer(self, sock: socket.socket, wanted: str) -> Message:
        try:
            message = receive(sock, timeout_s=self._timeout + MARGIN_S)
        except WireError as error:
            self._refused(f"rank 0: {error}")
        self.fds_held.extend(message.fds)
        if "refusal" in message.said:
            self._refused(str(message.said["refusal"]))
        if wanted not in message.said:
            self._refused(f"rank 0 said {sorted(message.said)} where it had to say {wanted!r}")
        return Message(message.said[wanted] if isinstance(message.said[wanted], dict) else {}, message.fds)

    def _refused(self, reason: str) -> NoReturn:
        self.over = True  # nobody is left to be told
        raise PeersCannotMapError(reason)
