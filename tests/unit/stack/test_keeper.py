"""The keeper ends as its child ends, and takes the tree with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.stack.family import alive, until

Keep = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def keep() -> Iterator[Keep]:
    """Starts keepers whose lifeline this test holds; `keep.cut()` is the supervisor's death."""
    read, write = os.pipe()
    started: list[subprocess.Popen[bytes]] = []

    def run(*argv: str, grace_s: float = 0.3) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "plait.stack.keeper", str(read), str(grace_s), "--", *argv]
        started.append(subprocess.Popen(command, pass_fds=(read,), stderr=subprocess.PIPE))
        return started[-1]

    run.cut = lambda: os.close(write)  # type: ignore[attr-defined]
    yield run
    for process in started:
        process.kill()
        process.wait()
        if process.stderr:
            process.stderr.close()
    os.close(read)
    if os.path.exists(f"/proc/self/fd/{write}"):
        os.close(write)


@pytest.mark.parametrize("code", [0, 1, 42])
def test_the_exit_status_is_passed_on(keep: Keep, code: int) -> None:
    assert keep("sh", "-c", f"exit {code}").wait(10) == code


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_the_signal_is_passed_on(keep: Keep, signum: int) -> None:
    assert keep("sh", "-c", f"kill -{int(signum)} $$").wait(10) == -signum


def test_what_the_child_leaves_behind_is_killed(keep: Keep, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    process = keep(
        "sh",
        "-c",
        f"setsid sh -c 'echo $$ > {pid_file}.new; mv {pid_file}.new {pid_file}; sleep 60' & exit 5",
    )
    assert process.wait(10) == 5
    # The leftover may have been killed before it could write its pid: then there is nothing to see.
    if pid_file.exists():
        assert not alive(int(pid_file.read_text()))


def test_a_lost_lifeline_ends_the_child(keep: Keep) -> None:
    process = keep("sleep", "60")
    until(lambda: bool(_children(process.pid)), "the child")
    child = _children(process.pid)[0]
    keep.cut()  # type: ignore[attr-defined]
    assert process.wait(10) == -signal.SIGTERM
    assert not alive(child)


def test_a_deaf_child_is_killed_after_the_grace(keep: Keep, tmp_path: Path) -> None:
    process = keep("sh", "-c", f"trap '' TERM; touch {tmp_path}/deaf; while :; do sleep 1; done")
    until((tmp_path / "deaf").exists, "the trap")
    process.terminate()
    assert process.wait(10) == -signal.SIGKILL


def test_a_command_that_does_not_exist_is_named(keep: Keep) -> None:
    process = keep("/no/such/program")
    assert process.wait(10) == 127
    assert process.stderr
    assert b"cannot run /no/such/program" in process.stderr.read()


def test_wrong_usage_is_refused() -> None:
    run = subprocess.run([sys.executable, "-m", "plait.stack.keeper", "3", "1", "sleep"], capture_output=True)
    assert run.returncode == 1
    assert b"usage: python -m plait.stack.keeper" in run.stderr


def _children(pid: int) -> list[int]:
    import psutil

    return [process.pid for process in psutil.Process(pid).children()]
