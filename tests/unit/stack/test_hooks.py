"""A rehearsal's outcome is read rightly, whichever way it ended."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from plait.engine.rehearsal import MARK
from plait.stack import hooks
from plait.stack.hooks import read_report, try_hooks

ROWS = [["sglang.srt.a.B.c", "around", "because"], ["sglang.srt.d", "replace", "since"]]


def test_hooks_in_force_are_listed() -> None:
    report = read_report(0, f"noise\n{MARK}{json.dumps(ROWS)}\nmore noise\n", "warnings")
    assert report.trouble == ""
    assert [hook.target for hook in report.hooks] == ["sglang.srt.a.B.c", "sglang.srt.d"]


def test_a_plugin_that_was_not_loaded_is_trouble() -> None:
    assert "did not load the plugin" in read_report(0, f"{MARK}[]\n", "").trouble


def test_plaits_own_message_is_told_whole() -> None:
    errors = "a warning\nplait: this engine is not the one:\nhook target is missing: x\n"
    assert read_report(78, "", errors).trouble == "this engine is not the one:\nhook target is missing: x"


@pytest.mark.parametrize(
    ("errors", "trouble"),
    [("Traceback\n  File\nImportError: no sglang\n", "ImportError: no sglang"), ("", "ended with status 1")],
)
def test_any_other_end_is_told_by_its_last_line(errors: str, trouble: str) -> None:
    assert trouble in read_report(1, "", errors).trouble


def test_a_mark_before_a_failure_does_not_count() -> None:
    assert read_report(1, f"{MARK}{json.dumps(ROWS)}\n", "plait: late\n").trouble == "late"


def test_only_the_settings_to_try_reach_the_rehearsal(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def run(command: list[str], *, env: dict[str, str], **_: Any) -> subprocess.CompletedProcess[str]:
        seen.update(command=command, env=env)
        return subprocess.CompletedProcess(command, 0, f"{MARK}{json.dumps(ROWS)}", "")

    monkeypatch.setenv("PLAIT_SPLIT", "page-zigzag")
    monkeypatch.setenv("SGLANG_PLUGINS", "plait")
    monkeypatch.setattr(hooks.subprocess, "run", run)
    assert len(try_hooks({"PLAIT_LAYOUT": "shared", "PLAIT_CPU": "1"}).hooks) == 2
    assert seen["command"][1:] == ["-m", "plait.engine.rehearsal"]
    mine = {name: value for name, value in seen["env"].items() if name.startswith("PLAIT_")}
    assert mine == {"PLAIT_LAYOUT": "shared", "PLAIT_CPU": "1"}
    assert seen["env"]["SGLANG_PLUGINS"] == "plait"


def test_a_rehearsal_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, 1)

    monkeypatch.setattr(hooks.subprocess, "run", run)
    assert "no answer within" in try_hooks({}).trouble
