"""The keeper: a small process between the supervisor and one child, so that no orphan is ever left.

    python -m plait.stack.keeper LIFELINE_FD GRACE_S -- ARGV...

It runs ARGV and adopts everything that ARGV leaves behind. When the supervisor asks (SIGTERM) or is gone
(the pipe LIFELINE_FD ends, even by SIGKILL), the child gets SIGTERM, and after GRACE_S seconds, or a second
SIGTERM, all processes below are killed. When the child ends by itself, what it left behind is killed, and
the keeper ends the same way, exit status or signal, so that the supervisor can tell.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from plait.stack.processes import adopt_orphans, die_with_parent, kill_below, send

_KILL_TIMEOUT_S = 5.0


class _Signals:
    """Wakes a select() on SIGTERM and SIGCHLD, and counts the SIGTERMs."""

    def __init__(self) -> None:
        self.terms = 0
        self.wakeup, written = os.pipe()
        for end in (self.wakeup, written):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._term)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for ignored in (signal.SIGINT, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)

    def _term(self, *_: object) -> None:
        self.terms += 1

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.wakeup, 4096)


class Keeper:
    """Runs one child and answers for its whole tree."""

    def __init__(self, argv: Sequence[str], *, lifeline: int, grace_s: float) -> None:
        self._argv, self._lifeline, self._grace_s = list(argv), lifeline, grace_s
        self._signals = _Signals()
        self._status: int | None = None
        self._pid = 0

    def run(self) -> int:
        """Runs to the end; returns the child's wait status."""
        adopt_orphans()
        me = os.getpid()
        child = subprocess.Popen(
            self._argv,
            stdin=subprocess.DEVNULL,
            preexec_fn=lambda: _into_child(me),
        )
        self._pid = child.pid
        self._until_asked()
        if self._status is None:
            self._stop()
        left = kill_below(me, timeout_s=_KILL_TIMEOUT_S)
        if left:
            print(f"plait keeper: processes {left} outlived SIGKILL", file=sys.stderr, flush=True)
        self._reap()
        return self._status if self._status is not None else signal.SIGKILL

    def _until_asked(self) -> None:
        """Returns when the child has ended, the supervisor asks to stop, or the supervisor is gone."""
        while self._status is None and not self._signals.terms:
            ready, _, _ = select.select([self._lifeline, self._signals.wakeup], [], [])
            self._signals.drain()
            self._reap()
            if self._lifeline in ready and not os.read(self._lifeline, 1):
                print("plait keeper: the supervisor is gone, stopping", file=sys.stderr, flush=True)
                return

    def _stop(self) -> None:
        """SIGTERM, then waits until the child has ended, the grace is over, or another SIGTERM comes."""
        send(self._pid, signal.SIGTERM)
        deadline = time.monotonic() + self._grace_s
        while self._status is None and self._signals.terms < 2:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            select.select([self._signals.wakeup], [], [], left)
            self._signals.drain()
            self._reap()

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._pid:
                    self._status = status


def _into_child(keeper: int) -> None:
    # Even if the keeper itself is killed, its child goes; the supervisor adopts and kills what is below.
    die_with_parent(keeper)
    signal.set_wakeup_fd(-1)
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(signum, signal.SIG_DFL)


def _end_like(status: int) -> None:
    """Ends this process as the wait status says: the same exit code, or the same signal."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        os._exit(code)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one core file, the child's, is enough
    with contextlib.suppress(OSError):  # SIGKILL has no handler to reset
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


def main(argv: Sequence[str]) -> None:
    """`argv`: lifeline fd, grace in seconds, `--`, then the child's command line."""
    lifeline, grace_s, dashes, *command = argv
    if dashes != "--" or not command:
        raise SystemExit("usage: python -m plait.stack.keeper LIFELINE_FD GRACE_S -- ARGV...")
    try:
        status = Keeper(command, lifeline=int(lifeline), grace_s=float(grace_s)).run()
    except OSError as error:
        print(f"plait keeper: cannot run {command[0]}: {error}", file=sys.stderr, flush=True)
        os._exit(127)
    _end_like(status)


if __name__ == "__main__":
    main(sys.argv[1:])
