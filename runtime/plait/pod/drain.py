"""`python3 -m plait.pod.drain`: wait until the engine has nothing to do. See the room's docstring.

Run before the engine is told to end (preStop). Routers see that the pod is going and send nothing new; what
is under way must end, and what decode engines are still fetching must have been sent.
"""

from __future__ import annotations

import argparse
import http.client
import os
import sys
import time
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from pydantic import ValidationError

from plait.contract.status import STATUS_PATH, EngineStatus
from plait.pod.arguments import seconds

_POLL_S = 0.25
_ANSWER_S = 5.0
_STALE_S = 5.0
_REFUSALS = 4  # in a row: then the engine is dead and not just busy
_SAID_EVERY_S = 10.0
_MOST_BYTES = 4 << 20


class State(Enum):
    """What one look at the engine shows."""

    IDLE = "idle"
    BUSY = "busy"
    UNKNOWN = "unknown"
    """It answers, but not what it has to do: then it may have something."""
    GONE = "gone"
    """Nobody listens."""


class Look(NamedTuple):
    """One look. `note`: in words."""

    state: State
    note: str


class Plan(NamedTuple):
    """Times in seconds, as on the command line."""

    leave_s: float
    quiet_s: float
    deadline_s: float


def judge(status: EngineStatus) -> Look:
    """Whether an engine with this status has something to do. A figure that is old says nothing."""
    if not status.ranks:
        return Look(State.UNKNOWN, "no rank has reported yet")
    old = [rank for rank in status.ranks if rank.age_s > _STALE_S]
    if old:
        names = ", ".join(f"rank {rank.rank} {rank.age_s:.0f} s" for rank in old)
        return Look(State.UNKNOWN, f"reports are old: {names}")
    # Ranks of a group run the same requests; the largest figure is the engine's.
    running = max(rank.running for rank in status.ranks)
    queued = max(rank.queued for rank in status.ranks)
    in_flight = sum(rank.pages.in_flight for rank in status.ranks)
    note = f"{running} running, {queued} queued, {in_flight} pages in flight"
    return Look(State.BUSY if running or queued or in_flight else State.IDLE, note)


def look(url: str, *, key: str = "") -> Look:
    """Ask the engine once; takes at most a few seconds and never raises. `key`: the engine's API key."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_ANSWER_S)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        connection.request("GET", STATUS_PATH, headers=headers)
        answer = connection.getresponse()
        body = answer.read(_MOST_BYTES)
    except ConnectionRefusedError:
        return Look(State.GONE, "nobody listens")
    except (OSError, http.client.HTTPException) as error:
        return Look(State.UNKNOWN, f"no answer ({type(error).__name__})")
    finally:
        connection.close()
    if answer.status != 200:
        return Look(State.UNKNOWN, f"{STATUS_PATH} answers {answer.status}")
    try:
        return judge(EngineStatus.model_validate_json(body))
    except ValidationError:
        return Look(State.UNKNOWN, f"{STATUS_PATH} answers what this version cannot read")


def drain(
    ask: Callable[[], Look],
    plan: Plan,
    say: Callable[[str], None],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Wait as `plan` says. True: the engine is idle or dead; False: the deadline passed before."""
    say(f"leaving: {plan.leave_s:g} s for the routers to see it")
    sleep(plan.leave_s)
    end = clock() + plan.deadline_s
    quiet_since: float | None = None
    refusals, said_at, said = 0, -_SAID_EVERY_S, ""
    while True:
        seen, now = ask(), clock()
        refusals = refusals + 1 if seen.state is State.GONE else 0
        if refusals >= _REFUSALS:
            say("the engine is gone")
            return True
        if seen.state is not State.IDLE:
            quiet_since = None
        elif quiet_since is None:
            quiet_since = now
        if quiet_since is not None and now - quiet_since >= plan.quiet_s:
            say("idle")
            return True
        if now >= end:
            say(f"the deadline of {plan.deadline_s:g} s has passed: {seen.note}")
            return False
        if seen.note != said and now - said_at >= _SAID_EVERY_S:
            say(seen.note)
            said_at, said = now, seen.note
        sleep(min(_POLL_S, max(0.0, end - now)))


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 idle or dead, 1 the deadline passed; wrong usage ends the process with 2."""
    told = _parser().parse_args(argv)

    def say(text: str) -> None:
        line = f"plait drain: {text}"
        print(line, file=sys.stderr, flush=True)
        if told.log is not None:
            try:
                with told.log.open("a") as out:
                    print(line, file=out, flush=True)
            except OSError:
                told.log = None  # said on stderr already; a log that cannot be written must not stop a drain

    plan = Plan(leave_s=told.leave_s, quiet_s=told.quiet_s, deadline_s=told.deadline_s)
    key = os.environ.get("ENGINE_API_KEY", "")
    return 0 if drain(lambda: look(told.url, key=key), plan, say) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m plait.pod.drain", allow_abbrev=False)
    parser.add_argument("--url", type=_url, default="http://127.0.0.1:30000")
    parser.add_argument("--leave-s", type=seconds, default=5.0)
    parser.add_argument("--quiet-s", type=seconds, default=2.0)
    parser.add_argument("--deadline-s", type=seconds, default=120.0)
    parser.add_argument("--log", type=Path)
    return parser


def _url(text: str) -> str:
    parts = urlsplit(text)
    try:
        sound = parts.scheme == "http" and bool(parts.hostname) and parts.port is not None
    except ValueError:
        sound = False
    if not sound:
        raise argparse.ArgumentTypeError(f"{text!r} is not like http://127.0.0.1:30000")
    return text


if __name__ == "__main__":
    sys.exit(main())
