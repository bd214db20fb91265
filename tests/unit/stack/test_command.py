"""What `plait up` prints, and its exit status, for every way in which it ends."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.stack.test_plan import OPTIONS, PORTS

from plait.stack import command
from plait.stack.plan import StackPlan, plan_stack
from plait.stack.ports import PortError
from plait.stack.supervise import ChildDiedError, StartTimeoutError, StopRequested

Ready = Callable[[StackPlan, Path], None]


def _run(monkeypatch: pytest.MonkeyPatch, error: Exception, *, was_up: bool) -> int:
    def up(_options: object, *, ready: Ready, **_: Any) -> None:
        if was_up:
            ready(plan_stack(OPTIONS, PORTS), Path("/runs/one/state.json"))
        raise error

    monkeypatch.setattr(command, "up", up)
    return command.run_up(OPTIONS, port=None, state=None, start_timeout_s=1.0)


@pytest.mark.parametrize(
    ("error", "was_up", "status"),
    [
        (StopRequested(signal.SIGINT), True, 0),
        (StopRequested(signal.SIGTERM), True, 0),
        (StopRequested(signal.SIGINT), False, 130),
        (StopRequested(signal.SIGTERM), False, 143),
        (ChildDiedError("decode-0", "decode-0 ended"), True, 1),
        (StartTimeoutError("not ready"), False, 1),
        (PortError("--port=1: already in use"), False, 2),
    ],
)
def test_the_exit_status_tells_how_it_ended(
    monkeypatch: pytest.MonkeyPatch, error: Exception, was_up: bool, status: int
) -> None:
    assert _run(monkeypatch, error, was_up=was_up) == status


def test_the_running_stack_is_announced_with_a_line_to_paste(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(monkeypatch, StopRequested(signal.SIGINT), was_up=True)
    out = capsys.readouterr().out
    assert "ready http://127.0.0.1:1   state: /runs/one/state.json" in out
    line = next(line for line in out.splitlines() if line.startswith("curl "))
    assert line.startswith("curl -N http://127.0.0.1:1/v1/chat/completions")
    assert line.endswith("}'")


def test_a_dead_child_is_told_with_brackets_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(monkeypatch, ChildDiedError("prefill", "prefill ended: [2026] oom"), was_up=False)
    assert "plait up: prefill ended: [2026] oom" in capsys.readouterr().err
