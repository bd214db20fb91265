"""One child of a stack: what to run, and the running of it behind its keeper."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from plait.stack.probe import LogWatch, Probe, Readiness, check, tail
from plait.stack.processes import descendants, kill_below, send

# In the environment of every process of a stack: by its value, what a killed keeper left is recognized.
FAMILY = "_PLAIT_STACK_FAMILY"

Phase = Literal["starting", "ready", "stopping", "ended"]


@dataclass(frozen=True, kw_only=True)
class ChildSpec:
    """What to run. `env` is laid over the supervisor's environment; `ports` are those it listens on."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    probe: Probe
    log: Path
    ports: tuple[int, ...] = ()


class ChildView(NamedTuple):
    """A child as shown to the user; `seconds`: until it was ready, or so far."""

    name: str
    phase: Phase
    note: str
    seconds: float
    last_line: str


class Child:
    """A started child. Its keeper answers for the whole tree below it."""

    def __init__(self, spec: ChildSpec, *, family: str, lifeline: int, grace_s: float) -> None:
        self.spec = spec
        self.phase: Phase = "starting"
        self._grace_s = grace_s
        self._note = "loading"
        self._started = time.monotonic()
        self._seconds: float | None = None
        self._watch = LogWatch(spec.log, spec.probe.marker)
        keeper = [sys.executable, "-m", "plait.stack.keeper", str(lifeline), str(grace_s), "--"]
        with spec.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*keeper, *spec.argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **spec.env, "PYTHONUNBUFFERED": "1", FAMILY: family},
                # Its own session: Ctrl-C in the terminal reaches the supervisor alone, which then ends
                # the children in order.
                start_new_session=True,
                pass_fds=(lifeline,),
            )

    @property
    def keeper(self) -> int:
        """Pid of the keeper."""
        return self._process.pid

    @property
    def pids(self) -> list[int]:
        """Pids of the child and all that is below it, the child first; the keeper is not one of them."""
        return descendants(self._process.pid)

    def ended(self) -> str | None:
        """How the child ended, in words, or None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        self.phase = "ended"
        if code >= 0:
            return f"exit status {code}"
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"

    def look(self) -> None:
        """Asks a starting child whether it is ready."""
        if self.phase != "starting":
            return
        readiness: Readiness = check(self.spec.probe, self._watch)
        self._note = readiness.note
        if readiness.ready:
            self.phase = "ready"
            self._seconds = time.monotonic() - self._started

    def view(self) -> ChildView:
        seconds = time.monotonic() - self._started if self._seconds is None else self._seconds
        last = (tail(self.spec.log, 1) or [""])[0]
        return ChildView(self.spec.name, self.phase, self._note, seconds, last)

    def ask_to_stop(self) -> None:
        """First call: SIGTERM and the grace; a further call: the whole tree is killed at once."""
        if self._process.poll() is None:
            self.phase = "stopping"
            send(self._process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """The last resort, for a keeper that does not answer: kills it and everything below."""
        kill_below(self._process.pid, timeout_s=2.0)
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
