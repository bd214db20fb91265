"""The private folder in which the ranks of one host find each other: a socket, and notes of who is where."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import threading
from pathlib import Path

from plait.peer.errors import PeersCannotMapError

_SUN_PATH = 107
"""Bytes of a Unix socket's path (sun_path has 108, one of which ends it)."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class MeetingPlace:
    """Where the ranks of `group` meet: a socket and a note per rank, in `folder` (made with mode 0700).

    Raises PeersCannotMapError if the folder belongs to someone else, is open to others, cannot be made, or
    has too long a path: each of these is equal on all ranks.
    """

    def __init__(self, folder: Path, group: str) -> None:
        stem = hashlib.sha256(group.encode()).hexdigest()[:12]
        self.socket = folder / f"{stem}.sock"
        self._folder, self._stem = folder, stem
        length = len(os.fsencode(self.socket))
        if length > _SUN_PATH:
            raise PeersCannotMapError(
                f"the path of the socket {self.socket} has {length} bytes, the system takes {_SUN_PATH}: "
                f"use a folder with a shorter path"
            )
        _make_private(folder)

    def leave_note(self, rank: int) -> None:
        """Say that `rank` is on this host; `forget_note` takes it back.

        It serves to say more than "did not come" where ranks are on two hosts: one that cannot be written
        (a full disk) is left out.
        """
        path = self._note(rank)
        beside = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        with contextlib.suppress(OSError):
            beside.write_text(boot_id())
            beside.replace(path)

    def forget_note(self, rank: int) -> None:
        """Take the note of `rank` back, if it is there."""
        self._note(rank).unlink(missing_ok=True)

    def on_another_host(self, rank: int, *, since: float) -> bool:
        """Whether `rank` left a note on another host, in a folder that both share. Notes from before `since`
        (seconds of the wall clock) are of a run that has ended."""
        path = self._note(rank)
        try:
            return path.stat().st_mtime >= since and path.read_text() not in ("", boot_id())
        except OSError:
            return False

    def _note(self, rank: int) -> Path:
        return self._folder / f"{self._stem}.{rank}.host"


def boot_id() -> str:
    """What tells this run of this host's kernel from all others; containers of one host share it."""
    return _BOOT_ID.read_text().strip()


def _make_private(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise PeersCannotMapError(f"cannot make the folder {folder}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode):
        raise PeersCannotMapError(f"{folder} is not a folder")
    if found.st_uid != os.geteuid():
        raise PeersCannotMapError(
            f"the folder {folder} belongs to user {found.st_uid}, not to {os.geteuid()}"
        )
    if found.st_mode & 0o077:
        raise PeersCannotMapError(
            f"the folder {folder} is open to others (mode {stat.S_IMODE(found.st_mode):04o}): whoever "
            f"can enter it could read the cache; its mode must be 0700"
        )
