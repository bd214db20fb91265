"""Messages with file descriptors over a Unix socket. Each is one packet: JSON and at most 253 descriptors."""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

_MOST_BYTES = 1 << 16
_MOST_FDS = 253
"""SCM_MAX_FD of the kernel."""


class WireError(RuntimeError):
    """The other side has ended, was too slow, or said what cannot be read."""


class Message(NamedTuple):
    """What arrived. The receiver owns `fds` and must close them."""

    said: dict[str, Any]
    fds: tuple[int, ...]


def send(sock: socket.socket, said: dict[str, Any], fds: Sequence[int] = (), *, timeout_s: float) -> None:
    """Send one message. Raises WireError if the other side has ended or does not take it in time."""
    sock.settimeout(timeout_s)
    try:
        socket.send_fds(sock, [json.dumps(said).encode()], list(fds))
    except OSError as error:
        raise WireError(f"a message was not taken ({error})") from error


def receive(sock: socket.socket, *, timeout_s: float) -> Message:
    """Wait for one message. Raises WireError if the other side has ended, said nothing in time, or if
    descriptors were lost on the way (they are closed)."""
    sock.settimeout(max(timeout_s, 0.001))
    try:
        try:
            data, received, flags, _ = _packet(sock)
        except ConnectionResetError:
            # The other side closed before it had read all that was sent to it. What it said before that is
            # still there: the kernel reports the reset once, then gives it.
            data, received, flags, _ = _packet(sock)
    except TimeoutError as error:
        raise WireError("no answer in time") from error
    except OSError as error:
        raise WireError(f"the connection broke ({error})") from error
    fds = tuple(received)
    try:
        if not data:
            raise WireError("the process has ended, or has left")
        if flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
            raise WireError("descriptors were lost on the way: the limit of open files is too low")
        try:
            said = json.loads(data)
        except ValueError as error:
            raise WireError("a message was no JSON") from error
        if not isinstance(said, dict):
            raise WireError("a message was no JSON object")
    except WireError:
        close_all(fds)
        raise
    return Message(said, fds)


def user_of(sock: socket.socket) -> int:
    """The user id of the process at the other end, from the kernel."""
    packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", packed)[1])


def listen(path: str) -> socket.socket:
    """A socket that listens at `path`, in place of what a run that crashed may have left there."""
    sock = _packets()
    try:
        if os.path.lexists(path):
            os.unlink(path)
        sock.bind(path)
        sock.listen(_MOST_FDS)
    except BaseException:
        sock.close()
        raise
    return sock


def connect(path: str, *, timeout_s: float) -> socket.socket | None:
    """A socket connected to the one that listens at `path`; None if nobody does yet."""
    sock = _packets()
    sock.settimeout(max(timeout_s, 0.001))
    try:
        sock.connect(path)
    except (FileNotFoundError, ConnectionRefusedError, TimeoutError, BlockingIOError):
        sock.close()
        return None
    except BaseException:
        sock.close()
        raise
    return sock


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)


class Deadline:
    """A moment on the monotonic clock."""

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds until then; 0 if it is past."""
        return max(self._at - time.monotonic(), 0.0)


def _packet(sock: socket.socket) -> tuple[bytes, list[int], int, object]:
    return socket.recv_fds(sock, _MOST_BYTES, _MOST_FDS, socket.MSG_CMSG_CLOEXEC)


def _packets() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
