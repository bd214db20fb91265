"""The doctor puts everything together, and is healthy only when all of it is."""

from __future__ import annotations

import json

import pytest

from plait.contract.settings import Settings
from plait.stack import doctor
from plait.stack.doctor import rehearsed, run_doctor
from plait.stack.hooks import Hook, HookReport
from plait.stack.machine import Fact

APPLIED = HookReport([Hook("sglang.srt.a.b", "around", "because")], "")


@pytest.fixture
def sound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "versions", lambda: [Fact("plait", "1")])
    monkeypatch.setattr(doctor, "hardware", lambda: [Fact("memory", "8 GiB")])
    monkeypatch.setattr(doctor, "libraries", lambda: [Fact("libibverbs", "loads")])
    monkeypatch.setattr(doctor, "cuda", list)
    monkeypatch.setattr(doctor, "try_hooks", lambda _settings: APPLIED)
    for name in [row.name for row in Settings().describe()]:
        monkeypatch.delenv(name, raising=False)


def test_all_is_well(sound: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_doctor(hooks=True, as_json=False) == 0
    out = capsys.readouterr().out
    assert "applied" in out
    assert "PLAIT_LAYOUT" in out
    assert "nothing is missing" in out


def test_as_json_everything_is_in_it(
    sound: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PLAIT_SPLIT", "page-zigzag")
    assert run_doctor(hooks=True, as_json=True) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["healthy"] is True
    assert said["hooks"]["applied"][0]["target"] == "sglang.srt.a.b"
    values = {row["name"]: row["value"] for row in said["settings"]}
    assert values["PLAIT_SPLIT"] == "page-zigzag"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("libraries", [Fact("libibverbs", "absent", False)]),
        ("versions", [Fact("sglang", "not installed", False)]),
    ],
)
def test_what_is_missing_is_not_healthy(
    sound: None, monkeypatch: pytest.MonkeyPatch, name: str, found: list[Fact]
) -> None:
    monkeypatch.setattr(doctor, name, lambda: found)
    assert run_doctor(hooks=True, as_json=False) == 1


def test_hooks_that_failed_are_told(
    sound: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "try_hooks", lambda _settings: HookReport([], "hook target is missing: [x]"))
    assert run_doctor(hooks=True, as_json=False) == 1
    assert "hook target is missing: [x]" in " ".join(capsys.readouterr().out.split())


def test_settings_that_are_refused_are_told_and_no_hook_is_tried(
    sound: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PLAIT_LAYUOT", "shared")
    monkeypatch.setattr(doctor, "try_hooks", lambda _settings: pytest.fail("tried"))
    assert run_doctor(hooks=True, as_json=True) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["refused"][0]["field"] == "PLAIT_LAYUOT"
    assert run_doctor(hooks=True, as_json=False) == 1
    assert "PLAIT_LAYUOT" in capsys.readouterr().out


def test_hooks_can_be_left_out(sound: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "try_hooks", lambda _settings: pytest.fail("tried"))
    assert run_doctor(hooks=False, as_json=False) == 0


def test_hooks_are_tried_with_the_layout_in_force_or_the_shared_one() -> None:
    off = Settings.from_env({})
    assert rehearsed(off, on_cpu=True) == {"PLAIT_LAYOUT": "shared", "PLAIT_CPU": "1"}
    plain = Settings.from_env({"PLAIT_LAYOUT": "plain"})
    assert rehearsed(plain, on_cpu=False) == {"PLAIT_LAYOUT": "plain"}
