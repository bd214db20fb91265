"""Nothing hangs: threads are left behind, processes are killed with their children."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from plait.pod.deadline import Deadline, Waiting, run


def test_a_deadline_counts_down_to_zero() -> None:
    deadline = Deadline(0.05)
    assert 0 < deadline.left_s <= 0.05
    time.sleep(0.06)
    assert deadline.left_s == 0


def test_work_is_waited_for() -> None:
    assert Waiting(lambda: 7).result(Deadline(5)) == 7


def test_what_work_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        Waiting(lambda: 1 // 0).result(Deadline(5))


def test_work_that_hangs_is_left_behind() -> None:
    never = threading.Event()
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        Waiting(never.wait).result(Deadline(0.1))
    assert time.monotonic() - started < 2
    never.set()


def test_a_process_is_heard() -> None:
    code = "import sys; print('out'); print('bad', file=sys.stderr); sys.exit(3)"
    assert run([sys.executable, "-c", code], environ=os.environ, deadline=Deadline(30)) == (
        3,
        "out\n",
        "bad\n",
    )


def test_a_process_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    # The child keeps the pipes open: who waits for their end would wait for ever.
    command = ["sh", "-c", f"sleep 60 & echo $! > {pid}; wait"]
    started = time.monotonic()
    assert run(command, environ=os.environ, deadline=Deadline(1.3)).status is None
    assert time.monotonic() - started < 3
    child = int(pid.read_text())
    for _ in range(100):
        if not _alive(child):
            return
        time.sleep(0.02)
    pytest.fail(f"process {child} lives on")


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
