"""Time that is left, and work that must not take more of it: nothing in a pod's init container may hang."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

_Answer = TypeVar("_Answer")
_GRACE_S = 1.0  # a process that is given up must be told of before the thread that waits for it is


class Deadline:
    """A moment `seconds` from now, on the monotonic clock."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        """Seconds until then, 0 when it has passed."""
        return max(0.0, self._end - time.monotonic())


class Outcome(NamedTuple):
    """How a process ended. `status` None: it was given up at the deadline, and killed with its children."""

    status: int | None
    out: str
    errors: str


class Waiting(Generic[_Answer]):
    """Work in a thread of its own, which is left behind where it does not end: a read of a dead network
    file system cannot be interrupted. The process must then end by `os._exit`."""

    def __init__(self, work: Callable[[], _Answer]) -> None:
        self._answer: _Answer | None = None
        self._error: BaseException | None = None
        self._done = threading.Event()
        threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def result(self, deadline: Deadline) -> _Answer:
        """What the work returned. Raises TimeoutError at the deadline, and what the work raised."""
        if not self._done.wait(deadline.left_s):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._answer  # type: ignore[return-value]  # it is there when no error is

    def _run(self, work: Callable[[], _Answer]) -> None:
        try:
            self._answer = work()
        except BaseException as error:  # the one who waits hears of all of them
            self._error = error
        finally:
            self._done.set()


def run(command: Sequence[str], *, environ: Mapping[str, str], deadline: Deadline) -> Outcome:
    """Run a process until it ends or little is left of the deadline; then it is killed with its children."""
    # A session of its own: what it has started goes with it, not with us.
    process = subprocess.Popen(
        command,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        out, errors = process.communicate(timeout=max(0.0, deadline.left_s - _GRACE_S))
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return Outcome(None, "", "")
    return Outcome(process.returncode, out, errors)
