"""The processes of the other ranks: who they are, and whether they still run.

A pidfd travels from each rank to all others. It says that exactly this process has ended, in whatever pid
namespace it lives and whoever reaps it; a pid alone may be another process's by now.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterable
from typing import NamedTuple


class PeerProcess(NamedTuple):
    """One rank's process. pidfd: None where the kernel gives none; whether it runs is then not known."""

    rank: int
    pid: int
    pidfd: int | None


def own_pidfd() -> int | None:
    """A pidfd of this process, to be closed by the caller. None where the kernel refuses."""
    try:
        return os.pidfd_open(os.getpid())
    except (AttributeError, OSError):
        return None


class Peers:
    """The other ranks' processes. Owns the pidfds; safe to ask from any thread until `close`."""

    def __init__(self, processes: Iterable[PeerProcess]) -> None:
        self._pids: dict[int, int] = {}
        self._fds: dict[int, int] = {}
        # One poll object takes one caller at a time; the watch and the barriers ask from their own threads.
        self._lock = threading.Lock()
        self._poll = select.poll()
        for rank, pid, pidfd in processes:
            self._pids[rank] = pid
            if pidfd is not None:
                own = os.dup(pidfd)
                self._fds[own] = rank
                self._poll.register(own, select.POLLIN)

    def ended(self) -> frozenset[int]:
        """Ranks whose process has ended (a zombie too). Does not block."""
        with self._lock:
            return frozenset(self._fds[fd] for fd, _ in self._poll.poll(0)) if self._fds else frozenset()

    def name(self, rank: int) -> str:
        """`rank` in words: with its pid, if it is another rank."""
        pid = self._pids.get(rank)
        return f"rank {rank}" if pid is None else f"rank {rank} (pid {pid})"

    def names(self, ranks: Iterable[int]) -> str:
        """Several ranks in words."""
        return ", ".join(self.name(rank) for rank in sorted(ranks))

    def close(self) -> None:
        """Close the pidfds; nobody has ended from then on. Can be called again."""
        with self._lock:
            fds, self._fds = self._fds, {}
            for fd in fds:
                self._poll.unregister(fd)
                os.close(fd)
