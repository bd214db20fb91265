"""The state file lives exactly as long as the running stack; ports and folders never collide."""

from __future__ import annotations

import dataclasses
import socket
import sys
from pathlib import Path

import pytest
from rich.console import Console
from tests.unit.stack.family import alive
from tests.unit.stack.test_plan import OPTIONS

from plait.stack.child import ChildSpec
from plait.stack.display import PlainReport
from plait.stack.plan import StackPlan
from plait.stack.ports import PortError
from plait.stack.probe import Probe
from plait.stack.statefile import read_state
from plait.stack.supervise import ChildDiedError
from plait.stack.up import choose_ports, run_folder, running

STUB = str(Path(__file__).with_name("stub_child.py"))
QUIET = PlainReport(Console(quiet=True))


def _plan(folder: Path, **more: list[str]) -> StackPlan:
    """A real plan whose children are stubs."""
    options = dataclasses.replace(OPTIONS, folder=folder, decode=1)
    ports = choose_ports(options)
    listening = {
        "prefill": (ports.prefill, ports.bootstrap),
        "decode-0": ports.decode,
        "router": (ports.router,),
    }
    children = tuple(
        ChildSpec(
            name=name,
            argv=(sys.executable, "-S", STUB, str(folder), str(mine[0]), *more.get(name, [])),
            probe=Probe(f"http://127.0.0.1:{mine[0]}/", ranks=1),
            log=folder / f"{name}.log",
            ports=mine,
        )
        for name, mine in listening.items()
    )
    return StackPlan(options, ports, children)


def test_the_state_file_is_there_while_the_stack_is_up(tmp_path: Path) -> None:
    state = tmp_path / "deep" / "state.json"
    with running(_plan(tmp_path), report=QUIET, state=state, grace_s=2.0):
        seen = read_state(state)
        assert all(alive(pid) for pid in [seen.router.pid, *seen.prefill[0].pids, *seen.decode[0].pids])
    assert not state.exists()
    assert not any(alive(pid) for pid in [seen.router.pid, *seen.prefill[0].pids, *seen.decode[0].pids])


def test_a_start_that_fails_writes_no_state_file(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    plan = _plan(tmp_path, router=["--ready-after", "-1", "--die-after", "0.2"])
    with (
        pytest.raises(ChildDiedError, match="router ended before it was ready: exit status 3"),
        running(plan, report=QUIET, state=state, grace_s=2.0),
    ):
        pytest.fail("it never was up")
    assert not state.exists()


def test_a_state_file_of_another_stack_is_left_alone(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    with running(_plan(tmp_path), report=QUIET, state=state, grace_s=2.0):
        state.write_text("someone else's")
    assert state.read_text() == "someone else's"


def test_a_taken_router_port_is_refused_and_all_ports_differ() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        with pytest.raises(PortError, match=f"--port={port}: already in use"):
            choose_ports(OPTIONS, router=port)
    ports = choose_ports(OPTIONS, router=port)
    assert ports.router == port
    everyone = [ports.router, ports.prefill, ports.bootstrap, *ports.decode]
    assert len(set(everyone)) == 3 + OPTIONS.decode


def test_run_folders_do_not_collide(tmp_path: Path) -> None:
    first = run_folder(tmp_path)
    first.mkdir()
    second = run_folder(tmp_path)
    assert first.is_absolute()
    assert first != second
    assert not second.exists()
