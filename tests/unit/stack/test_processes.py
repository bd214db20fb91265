"""Adoption, recognition and killing of process trees."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.unit.stack.family import alive, until

from plait.stack.processes import adopt_orphans, carries, descendants, kill_below

# A parent that leaves an orphan in its own session, prints the orphan's pid, and ends.
LEAVE_ORPHAN = """
import subprocess
child = subprocess.Popen(["sleep", "60"], start_new_session=True, stdout=-3, stderr=-3)
print(child.pid, flush=True)
"""


@pytest.fixture
def adopting() -> Iterator[None]:
    before = adopt_orphans()
    yield
    adopt_orphans(before)


def _orphan() -> int:
    out = subprocess.run([sys.executable, "-S", "-c", LEAVE_ORPHAN], capture_output=True, check=True)
    return int(out.stdout)


def test_an_orphan_is_adopted_found_and_killed(adopting: None) -> None:
    orphan = _orphan()
    assert orphan in descendants(os.getpid())
    assert kill_below(os.getpid(), timeout_s=5.0, only=lambda pid: pid == orphan) == []
    assert not alive(orphan)
    os.waitpid(orphan, 0)


def test_adoption_tells_what_was_before_and_can_be_taken_back(adopting: None) -> None:
    assert adopt_orphans(False) is True
    assert adopt_orphans(True) is False


def test_only_those_asked_for_are_killed() -> None:
    kept, killed = (subprocess.Popen(["sleep", "60"]) for _ in range(2))
    try:
        kill_below(os.getpid(), timeout_s=5.0, only=lambda pid: pid == killed.pid)
        assert killed.wait(5) == -9
        assert kept.poll() is None
    finally:
        for process in (kept, killed):
            process.kill()
            process.wait()


def test_what_cannot_be_killed_in_time_is_named() -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        # No time at all: the first round has signalled, the second has not looked yet.
        left = kill_below(os.getpid(), timeout_s=-1.0, only=lambda pid: pid == process.pid)
        assert left == [process.pid]
    finally:
        process.kill()
        process.wait()


def test_a_mark_in_the_environment_is_seen() -> None:
    process = subprocess.Popen(["sleep", "60"], env={**os.environ, "MARK": "ours"})
    try:
        until(lambda: carries(process.pid, "MARK", "ours"), "the mark")
        assert not carries(process.pid, "MARK", "theirs")
    finally:
        process.kill()
        process.wait()
    assert not carries(process.pid, "MARK", "ours")


def test_a_process_that_is_gone_has_no_descendants() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert descendants(process.pid) == []
