"""The host's side of a meeting (rank 0): collects, checks, passes on, decides."""

from __future__ import annotations

import os
import select
import socket
from contextlib import suppress
from typing import NamedTuple, NoReturn

from plait.peer.errors import PeersCannotMapError
from plait.peer.folder import MeetingPlace
from plait.peer.terms import VERSION, Answer, Member, Offer
from plait.peer.wire import Deadline, Message, WireError, connect, listen, receive, send, user_of

_POLL_S = 0.2
"""How often the notes of missing ranks are looked at."""
_SEND_S = 5.0
"""What a guest may take to accept a message that fits into its socket's buffer."""


class _Guest(NamedTuple):
    """A rank that has come."""

    sock: socket.socket
    answer: Answer
    digest: str


class Host:
    """See `plait.peer.terms.Side`."""

    def __init__(self, place: MeetingPlace, me: Member, *, timeout_s: float, notes_since: float) -> None:
        self._place, self._me, self._timeout = place, me, timeout_s
        self._notes_since = notes_since
        self._deadline = Deadline(timeout_s)
        self._strangers: list[socket.socket] = []
        self._guests: dict[int, _Guest] = {}
        self._refusal = ""
        self.over = False
        self.fds_held: list[int] = []
        self._listener: socket.socket | None = self._listen()

    def exchange(self, offer: Offer) -> tuple[Answer, ...]:
        while self._missing():
            self._take(self._next())
        for guest in self._guests.values():
            if guest.digest != offer.digest:
                self._fail(
                    f"{_name(guest.answer)} lays its memory out otherwise than rank 0 (pid {os.getpid()}): "
                    f"digest {guest.digest[:12]} and {offer.digest[:12]}"
                )
        self._stop_listening()
        mine = Answer(0, os.getpid(), offer.note, offer.fds)
        answers = (mine, *(self._guests[rank].answer for rank in sorted(self._guests)))
        entries = [{"rank": a.rank, "pid": a.pid, "note": a.note, "fds": len(a.fds)} for a in answers]
        self._tell_all({"all": {"ranks": entries}}, tuple(fd for answer in answers for fd in answer.fds))
        return answers

    def commit(self) -> None:
        self._deadline = Deadline(self._timeout)
        waiting = dict(self._guests)
        while waiting:
            ready = self._readable([guest.sock for guest in waiting.values()])
            for rank, guest in list(waiting.items()):
                if guest.sock in ready:
                    self._expect_ready(guest)
                    del waiting[rank]
            if waiting and not self._deadline.left():
                self._fail(f"{_names(waiting)} did not say within {self._timeout:g} s whether it could map")
        # From here on it is decided: a guest that ends now is a rank that dies later.
        for guest in self._guests.values():
            try:
                send(guest.sock, {"commit": {}}, timeout_s=_SEND_S)
            except WireError:
                continue

    def withdraw(self, reason: str) -> None:
        """Also waits for ranks that have not come yet, to tell them when they do."""
        self._refusal = reason
        for guest in self._guests.values():
            self._refuse(guest.sock)
        try:
            while self._listener is not None and self._late() and self._deadline.left():
                sock = self._next(patient=True)
                if sock is not None:
                    self._take(sock, refused=True)
        except (WireError, PeersCannotMapError, OSError):
            pass

    def close(self) -> None:
        self._stop_listening()
        for sock in (*self._strangers, *(guest.sock for guest in self._guests.values())):
            sock.close()

    # Phase 1: who comes.

    def _listen(self) -> socket.socket | None:
        if self._me.ranks == 1:
            return None
        path = str(self._place.socket)
        other = connect(path, timeout_s=1.0)
        if other is not None:
            other.close()
            raise PeersCannotMapError(f"another process is rank 0 of group {self._me.group!r} at {path}")
        try:
            return listen(path)
        except OSError as error:
            raise PeersCannotMapError(f"cannot listen at {path}: {error.strerror}") from error

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            self._place.socket.unlink(missing_ok=True)

    def _missing(self) -> list[int]:
        return [rank for rank in range(1, self._me.ranks) if rank not in self._guests]

    def _late(self) -> list[int]:
        """Missing ranks that may come yet."""
        return [rank for rank in self._missing() if not self._elsewhere(rank)]

    def _elsewhere(self, rank: int) -> bool:
        return self._place.on_another_host(rank, since=self._notes_since)

    def _next(self, *, patient: bool = False) -> socket.socket | None:
        """A stranger that has said something. `patient`: return None at the deadline and do not look at
        guests; otherwise a guest that ends, a missing rank on another host, and the deadline are failures."""
        while True:
            listener = self._listener
            if listener is None:
                raise WireError("nobody is listening")
            guests = [] if patient else [guest.sock for guest in self._guests.values()]
            ready = self._readable([listener, *self._strangers, *guests])
            if listener in ready:
                self._strangers.append(listener.accept()[0])
            for guest in self._guests.values():
                if not patient and guest.sock in ready:
                    self._fail(self._why(guest))
            for sock in self._strangers:
                if sock in ready:
                    self._strangers.remove(sock)
                    return sock
            if patient:
                if not self._deadline.left():
                    return None
                continue
            for rank in self._missing():
                if self._elsewhere(rank):
                    self._fail(f"rank {rank} is on another host: memory can be mapped within one host only")
            if not self._deadline.left():
                missing = ", ".join(map(str, self._missing()))
                self._fail(f"rank {missing} did not come within {self._timeout:g} s (is it on another host?)")

    def _take(self, sock: socket.socket | None, *, refused: bool = False) -> None:
        """Read a stranger's hello, and make it a guest if it belongs here."""
        if sock is None:
            return
        try:
            if user_of(sock) != os.geteuid():
                raise WireError(f"a process of user {user_of(sock)}")
            message = receive(sock, timeout_s=_SEND_S)
        except WireError:
            sock.close()  # no rank of ours: if one is missing, that will be told
            return
        self.fds_held.extend(message.fds)
        try:
            guest, own_refusal = self._read(sock, message)
        except (KeyError, TypeError, ValueError):
            sock.close()
            return
        said = message.said
        if said["group"] != self._me.group:
            reason = f"this is the meeting of group {self._me.group!r}, not of {said['group']!r}"
            self._refuse(sock, reason)
            sock.close()
            return
        rank = guest.answer.rank
        there = self._guests.get(rank)
        if there is not None:
            reason = f"two processes are rank {rank}: pid {there.answer.pid} and {guest.answer.pid}"
            self._refuse(sock, reason)
            sock.close()
            if not refused:
                self._fail(reason)
            return
        self._guests[rank] = guest
        if refused:
            self._refuse(sock)
        elif said["version"] != VERSION:
            self._fail(f"{_name(guest.answer)} speaks version {said['version']} of this, rank 0 {VERSION}")
        elif said["ranks"] != self._me.ranks or not 0 < rank < self._me.ranks:
            self._fail(
                f"{_name(guest.answer)} is one of {said['ranks']} ranks, rank 0 one of {self._me.ranks}"
            )
        elif own_refusal is not None:
            self._fail(own_refusal)

    def _read(self, sock: socket.socket, message: Message) -> tuple[_Guest, str | None]:
        said = message.said
        answer = Answer(int(said["rank"]), int(said["pid"]), dict(said["note"]), message.fds)
        refusal = None if said["refusal"] is None else str(said["refusal"])
        return _Guest(sock, answer, str(said["digest"])), refusal

    # Phase 2, and how it fails.

    def _expect_ready(self, guest: _Guest) -> None:
        try:
            message = receive(guest.sock, timeout_s=_SEND_S)
        except WireError as error:
            self._fail(f"{_name(guest.answer)}: {error}")
        self.fds_held.extend(message.fds)
        if message.said.get("ready") is not True:
            self._fail(_refusal_of(guest.answer, message))

    def _why(self, guest: _Guest) -> str:
        """What a guest that had to wait said instead."""
        try:
            message = receive(guest.sock, timeout_s=_SEND_S)
        except WireError as error:
            return f"{_name(guest.answer)}: {error}"
        self.fds_held.extend(message.fds)
        return _refusal_of(guest.answer, message)

    def _tell_all(self, said: dict[str, object], fds: tuple[int, ...]) -> None:
        for guest in self._guests.values():
            try:
                send(guest.sock, said, fds, timeout_s=_SEND_S)
            except WireError as error:
                self._fail(f"{_name(guest.answer)}: {error}")

    def _refuse(self, sock: socket.socket, reason: str | None = None) -> None:
        with suppress(WireError):  # it has ended, or has been told before
            send(sock, {"refusal": reason or self._refusal}, timeout_s=_SEND_S)

    def _fail(self, reason: str) -> NoReturn:
        self.over = True
        raise PeersCannotMapError(reason)

    def _readable(self, socks: list[socket.socket]) -> list[socket.socket]:
        # Not select.select, which cannot take descriptors beyond 1023.
        poll = select.poll()
        for sock in socks:
            poll.register(sock, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(1000 * min(_POLL_S, self._deadline.left()))}
        return [sock for sock in socks if sock.fileno() in ready]


def _name(answer: Answer) -> str:
    return f"rank {answer.rank} (pid {answer.pid})"


def _refusal_of(answer: Answer, message: Message) -> str:
    """A guest's reason, which names it; it is for all ranks, word for word."""
    return str(message.said.get("refusal") or f"{_name(answer)} left, and did not say why")


def _names(guests: dict[int, _Guest]) -> str:
    return ", ".join(_name(guests[rank].answer) for rank in sorted(guests))
