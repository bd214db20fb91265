"""Whatever ends a stack, and whenever: all of it ends, and the user is told why."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import psutil
import pytest
from tests.unit.stack.family import READY, Family, until

Start = Callable[..., Family]
LOADING = ["--ready-after", "-1"]
STUBBORN = ["--deaf", "--hidden", "2"]
STOPS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize("signum", STOPS)
def test_a_signal_during_the_start_ends_all(start: Start, signum: int) -> None:
    family = start({"a": READY, "b": LOADING})
    family.until_started(2)
    family.process.send_signal(signum)
    assert family.end() == 10
    family.assert_nothing_left()


@pytest.mark.parametrize("signum", STOPS)
def test_a_signal_to_the_running_stack_ends_all(start: Start, signum: int) -> None:
    family = start({"a": READY, "b": [*READY, "--ready-after", "0.3"]})
    family.until_up()
    family.process.send_signal(signum)
    assert family.end() == 10
    family.assert_nothing_left()


def test_a_signal_before_any_child_has_begun_ends_all(start: Start) -> None:
    family = start({"a": READY, "b": LOADING})
    until(lambda: bool(family.keepers()), "a keeper")
    family.process.send_signal(signal.SIGTERM)
    assert family.end() == 10
    if family.children:  # a keeper may have been faster than the signal
        family.assert_nothing_left()


@pytest.mark.parametrize("phase", ["starting", "up"])
def test_a_killed_supervisor_leaves_nothing(start: Start, phase: str) -> None:
    family = start({"a": [*READY, "--hidden", "1"], "b": READY if phase == "up" else LOADING})
    family.until_started(2, hidden=1)
    if phase == "up":
        family.until_up()
    family.process.kill()
    family.assert_nothing_left()


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("phase", ["starting", "up"])
def test_the_stubborn_and_their_hidden_descendants_end_too(start: Start, phase: str, end: int) -> None:
    """Deaf to SIGTERM, in sessions of their own, orphaned, holding ports."""
    family = start({"a": [*STUBBORN, *READY], "b": STUBBORN + (READY if phase == "up" else LOADING)})
    family.until_started(2, hidden=4)
    if phase == "up":
        family.until_up()
    family.process.send_signal(end)
    family.end()
    family.assert_nothing_left()


@pytest.mark.parametrize("phase", ["starting", "up"])
def test_a_child_that_dies_ends_the_stack_with_its_last_lines(start: Start, phase: str) -> None:
    dying = ["--die-after", "1.0", "--die-code", "7", "--hidden", "1"]
    family = start({"healthy": READY, "sick": dying + (READY if phase == "up" else LOADING)})
    assert family.end() == 11
    when = "after the stack was up" if phase == "up" else "before it was ready"
    assert ("UP" in family.output) == (phase == "up")
    assert f"sick ended {when}: exit status 7" in family.output
    lines = [line for line in family.output.splitlines() if line.startswith("  | ")]
    assert lines == [f"  | trouble {number}" for number in range(10, 30)]
    assert "healthy ended" not in family.output
    family.assert_nothing_left()


def test_a_child_killed_by_a_signal_is_reported_so(start: Start) -> None:
    family = start({"a": [*READY, "--die-after", "0.5", "--die-code", "-11"], "b": LOADING})
    assert family.end() == 11
    assert "a ended after" in family.output or "a ended before" in family.output
    assert "killed by SIGSEGV" in family.output
    family.assert_nothing_left()


def test_a_child_that_is_never_ready_ends_the_start(start: Start) -> None:
    family = start({"quick": READY, "slow": LOADING}, timeout_s=2.0)
    assert family.end() == 12
    assert "not ready after 2 s: slow (loading); last lines of" in family.output
    assert "quick" not in family.output
    family.assert_nothing_left()


def test_too_few_ranks_is_not_ready(start: Start) -> None:
    family = start({"half": ["--ranks", "1"]}, timeout_s=2.0)
    assert family.end() == 12
    assert "half (1 of 2 ranks report)" in family.output
    family.assert_nothing_left()


@pytest.mark.parametrize("phase", ["starting", "up"])
def test_a_killed_keeper_ends_the_stack_and_its_tree(start: Start, phase: str) -> None:
    family = start({"a": [*READY, "--hidden", "2"], "b": READY if phase == "up" else LOADING})
    family.until_started(2, hidden=2)
    if phase == "up":
        family.until_up()
    keeper = next(k for k in family.keepers() if k.cmdline().count("--hidden"))
    keeper.kill()
    assert family.end() == 11
    assert "a ended" in family.output
    assert "killed by SIGKILL" in family.output
    family.assert_nothing_left()


def test_a_second_signal_cuts_the_grace_short(start: Start) -> None:
    family = start({"a": [*READY, "--deaf"]}, grace_s=60.0)
    family.until_up()
    family.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert family.process.poll() is None
    family.process.send_signal(signal.SIGINT)
    assert family.end(timeout_s=10.0) == 10
    family.assert_nothing_left()


def test_the_children_do_not_hear_the_terminal(start: Start) -> None:
    """Ctrl-C goes to the terminal's whole process group: the supervisor alone must be in it."""
    family = start({"a": READY, "b": READY})
    family.until_up()
    below = psutil.Process(family.process.pid).children(recursive=True)
    assert len(below) == 4
    assert all(os.getpgid(process.pid) != os.getpgid(family.process.pid) for process in below)


def test_leaving_the_block_spares_other_children_of_the_process() -> None:
    """Two stacks may live in one process (test fixtures do): the end of one is not the end of the other."""
    import subprocess

    from rich.console import Console

    from plait.stack.display import PlainReport
    from plait.stack.supervise import Supervisor

    other = subprocess.Popen(["sleep", "60"])
    try:
        with Supervisor([], report=PlainReport(Console(quiet=True))) as supervisor:
            supervisor.start()
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
