"""Process trees on Linux: adoption, death signals, and killing every descendant for certain.

A process that is a *subreaper* becomes the parent of every orphan below it, so a descendant that starts
its own session, or whose parent dies, can still be found by walking down from the subreaper.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37


def _prctl(option: int, value: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")


def adopt_orphans(on: bool = True) -> bool:
    """Makes this process the parent of orphans below it (or not); returns what was set before."""
    before = ctypes.c_int()
    _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before))
    _prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(on))
    return bool(before.value)


def die_with_parent(parent: int) -> None:
    """For a fresh child: SIGKILL when `parent` (the pid that started it) ends, also if it already has."""
    _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Pids of all living processes below `pid`, zombies left out; empty when `pid` is gone."""
    try:
        below = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [process.pid for process in below if _alive(process)]


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def send(pid: int, signum: int) -> None:
    """Sends a signal; a process that is already gone is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


def carries(pid: int, variable: str, value: str) -> bool:
    """Whether the process was started with `variable=value` in its environment."""
    try:
        return bool(psutil.Process(pid).environ().get(variable) == value)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def kill_below(pid: int, *, timeout_s: float, only: Callable[[int], bool] = lambda _: True) -> list[int]:
    """SIGKILLs the descendants of `pid` (those that `only` accepts) until none is left; returns those alive
    after `timeout_s` seconds. New children that appear while it works are found by the next round.
    """
    deadline = time.monotonic() + timeout_s
    while left := [each for each in descendants(pid) if only(each)]:
        for each in left:
            send(each, signal.SIGKILL)
        if time.monotonic() > deadline:
            return left
        time.sleep(0.02)
    return []
