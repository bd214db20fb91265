"""The end of an engine: what preStop runs fits the time that it gets."""

from __future__ import annotations

import pytest

from plait.pod.drain import _parser
from plait_operator.children.probes import grace, lifecycle


@pytest.mark.parametrize("seconds", [0, 1, 120, 86400])
def test_drain_takes_what_it_is_given(seconds: int) -> None:
    command = lifecycle(seconds)["preStop"]["exec"]["command"]
    assert command[:3] == ["python3", "-m", "plait.pod.drain"]
    told = _parser().parse_args(command[3:])
    assert told.deadline_s == seconds
    assert grace(seconds) >= told.leave_s + told.deadline_s + 20
    assert told.url == "http://127.0.0.1:30000"


def test_another_engines_end_is_waited_for_through_a_shell() -> None:
    shell, flag, line = lifecycle(60, url="http://$LEADER:30000")["preStop"]["exec"]["command"]
    assert (shell, flag) == ("/bin/sh", "-c")
    words = line.replace("$LEADER", "leader.example").split()
    assert words[:4] == ["exec", "python3", "-m", "plait.pod.drain"]
    assert _parser().parse_args(words[4:]).url == "http://leader.example:30000"
