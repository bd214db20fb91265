"""A child reports its phase, its pids, and how it ended."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.stack.family import alive, until

from plait.stack.child import FAMILY, Child, ChildSpec
from plait.stack.ports import pick_free
from plait.stack.probe import Probe
from plait.stack.processes import carries

STUB = str(Path(__file__).with_name("stub_child.py"))


@pytest.fixture
def lifeline() -> Iterator[int]:
    read, write = os.pipe()
    yield read
    os.close(read)
    os.close(write)


def _spec(folder: Path, *options: str, **env: str) -> ChildSpec:
    port = pick_free(1, host="127.0.0.1")[0]
    return ChildSpec(
        name="stub",
        argv=(sys.executable, "-S", STUB, str(folder), str(port), *options),
        env=env,
        probe=Probe(f"http://127.0.0.1:{port}/", ranks=1, marker="fired up"),
        log=folder / "stub.log",
    )


def _until_ready(child: Child) -> None:
    def ready() -> bool:
        child.look()
        return child.phase == "ready"

    until(ready, "ready")


def test_from_starting_to_ready_to_ended(tmp_path: Path, lifeline: int) -> None:
    child = Child(_spec(tmp_path, "--ready-after", "0.3"), family="f1", lifeline=lifeline, grace_s=1.0)
    assert child.view()[:3] == ("stub", "starting", "loading")
    _until_ready(child)
    first, again = child.view(), child.view()
    assert first.phase == "ready"
    assert first.seconds == again.seconds >= 0.3
    assert first.last_line == "The server is fired up and ready to roll!"
    pids = child.pids
    assert [path.name for path in tmp_path.glob("child-*")] == [f"child-{pids[0]}"]
    assert child.keeper not in pids
    assert carries(pids[0], FAMILY, "f1")
    assert child.ended() is None
    child.ask_to_stop()
    assert child.phase == "stopping"
    until(lambda: child.ended() is not None, "the end")
    assert child.ended() == "killed by SIGTERM"
    assert not alive(pids[0])


def test_settings_reach_the_child_over_those_of_the_parent(
    tmp_path: Path, lifeline: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOTH", "parent")
    monkeypatch.setenv("ONLY_PARENT", "kept")
    spec = _spec(tmp_path, BOTH="child")
    child = Child(spec, family="f2", lifeline=lifeline, grace_s=1.0)
    try:
        _until_ready(child)
        pid = child.pids[0]
        assert carries(pid, "BOTH", "child")
        assert carries(pid, "ONLY_PARENT", "kept")
    finally:
        child.kill()


def test_the_last_resort_takes_keeper_and_tree(tmp_path: Path, lifeline: int) -> None:
    child = Child(_spec(tmp_path, "--deaf", "--hidden", "1"), family="f3", lifeline=lifeline, grace_s=60.0)
    _until_ready(child)
    pids = child.pids
    assert len(pids) == 2
    child.kill()
    assert not any(alive(pid) for pid in [child.keeper, *pids])
    assert child.ended() is not None
