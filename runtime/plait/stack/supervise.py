"""Runs the children of a stack and ends all of them, whatever happens.

Ends with the first of: the caller leaves the `with` block, SIGINT, SIGTERM or SIGHUP, a child that dies,
a start that takes too long. If this process is killed, the keepers see it and end their children.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import uuid
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, Protocol

from plait.stack.child import FAMILY, Child, ChildSpec, ChildView
from plait.stack.probe import tail
from plait.stack.processes import adopt_orphans, carries, descendants, kill_below

LAST_LINES = 20
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# On top of the grace: what a keeper may need to kill and reap a tree.
_KEEPER_S = 8.0


class Report(Protocol):
    """Is shown all children a few times a second while something changes."""

    def show(self, children: Sequence[ChildView]) -> None: ...


class StackError(Exception):
    """The stack cannot go on. The message says which child, why, and ends with its last log lines."""


class ChildDiedError(StackError):
    """A child ended by itself."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class StartTimeoutError(StackError):
    """A child was not ready in time."""


class StopRequested(Exception):  # noqa: N818 - not an error: the user wants the stack to end
    """SIGINT, SIGTERM or SIGHUP arrived."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


def _last_lines(spec: ChildSpec) -> str:
    lines = tail(spec.log, LAST_LINES)
    if not lines:
        return f"{spec.log} is empty"
    return f"last lines of {spec.log}:\n" + "\n".join(f"  | {line}" for line in lines)


class Supervisor:
    """A context manager: `start()` brings all children up together, leaving the block ends all of them.

    To be used in the main thread (signals). `grace_s`: between SIGTERM and SIGKILL; `start_timeout_s`:
    until every child must be ready.
    """

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        *,
        report: Report,
        grace_s: float = 10.0,
        start_timeout_s: float = 600.0,
        poll_s: float = 0.2,
    ) -> None:
        self._specs, self._report = list(specs), report
        self._grace_s, self._start_timeout_s, self._poll_s = grace_s, start_timeout_s, poll_s
        self._children: list[Child] = []
        self._asked: list[int] = []
        self._family = uuid.uuid4().hex
        self._before: dict[int, Any] = {}
        self._adopting = False
        self._lifeline: tuple[int, int] | None = None

    @property
    def children(self) -> Sequence[Child]:
        return self._children

    def __enter__(self) -> Supervisor:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("a Supervisor handles signals, so it must be used in the main thread")
        # Should a keeper be killed, its children become ours, and are found when the stack ends.
        self._adopting = adopt_orphans()
        for signum in _SIGNALS:
            self._before[signum] = signal.signal(signum, self._ask)
        self._lifeline = os.pipe()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._stop()
        finally:
            for signum, handler in self._before.items():
                signal.signal(signum, handler)
            adopt_orphans(self._adopting)

    def _ask(self, signum: int, _frame: FrameType | None) -> None:
        # Only noted: raising here could hit between starting a child and knowing it.
        self._asked.append(signum)

    def start(self) -> None:
        """Starts every child and returns when all are ready; raises as `check`, or StartTimeoutError."""
        if self._lifeline is None:
            raise RuntimeError("start() outside of the with block")
        for spec in self._specs:
            self.check()
            spec.log.parent.mkdir(parents=True, exist_ok=True)
            self._children.append(
                Child(spec, family=self._family, lifeline=self._lifeline[0], grace_s=self._grace_s)
            )
        deadline = time.monotonic() + self._start_timeout_s
        while waiting := [child for child in self._children if child.phase != "ready"]:
            for child in waiting:
                self.check()
                child.look()
            self._show()
            if time.monotonic() > deadline:
                self._too_late()
            time.sleep(self._poll_s)
        self._show()

    def check(self) -> None:
        """Raises StopRequested after a signal, ChildDiedError after a death; otherwise returns at once."""
        if self._asked:
            raise StopRequested(self._asked[0])
        for child in self._children:
            started = child.phase == "ready"
            if how := child.ended():
                self._show()
                when = "after the stack was up" if started else "before it was ready"
                name = child.spec.name
                raise ChildDiedError(name, f"{name} ended {when}: {how}; {_last_lines(child.spec)}")

    def wait(self) -> None:
        """Watches the running stack; leaves only by what `check` raises."""
        while True:
            self.check()
            time.sleep(self._poll_s)

    def _too_late(self) -> None:
        late = [child for child in self._children if child.phase != "ready"]
        if late:
            parts = [f"{c.spec.name} ({c.view().note}); {_last_lines(c.spec)}" for c in late]
            raise StartTimeoutError(f"not ready after {self._start_timeout_s:g} s: " + "\n".join(parts))

    def _show(self) -> None:
        self._report.show([child.view() for child in self._children])

    def _stop(self) -> None:
        """Ends all children: SIGTERM to all, the grace (cut short by another Ctrl-C), then SIGKILL."""
        asked = len(self._asked)
        for child in self._children:
            child.ask_to_stop()
        deadline = time.monotonic() + self._grace_s + _KEEPER_S
        while any(child.ended() is None for child in self._children) and time.monotonic() < deadline:
            if len(self._asked) > asked:
                asked = len(self._asked)
                for child in self._children:
                    child.ask_to_stop()
            # A terminal that went away must not keep the children alive.
            with contextlib.suppress(OSError, ValueError):
                self._show()
            time.sleep(0.05)
        for child in self._children:
            child.kill()
        self._sweep()
        if self._lifeline is not None:
            for end in self._lifeline:
                os.close(end)
            self._lifeline = None
        with contextlib.suppress(OSError, ValueError):
            self._show()

    def _sweep(self) -> None:
        """Kills and reaps what a killed keeper left to us. Other children of this process (another stack,
        or the caller's own) do not carry the mark of this family and are not touched."""
        me = os.getpid()
        ours = [pid for pid in descendants(me) if self._is_ours(pid)]
        kill_below(me, timeout_s=5.0, only=self._is_ours)
        for pid in ours:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    def _is_ours(self, pid: int) -> bool:
        return carries(pid, FAMILY, self._family)
