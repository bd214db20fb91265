"""`plait check` shows all violations and answers by its exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plait.contract.violation import Violation
from plait.model.shape import TinyShape, config_json
from plait.stack import check
from plait.stack.check import run_check


def _file(folder: Path, cache: dict[str, object], **more: object) -> Path:
    config = {
        "model": {"shape": config_json(TinyShape())},
        "cache": cache,
        "prefill": {"contextParallel": 2},
        **more,
    }
    path = folder / "stack.json"
    path.write_text(json.dumps(config))
    return path


def test_all_violations_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _file(tmp_path, {"pageSize": 32, "layout": "shred"}, decode={"replica": 2})
    assert run_check(path, as_json=False) == 1
    out = capsys.readouterr().out
    for word in ("cache.pageSize", "cache.layout", "decode.replica"):
        assert word in out
    assert "3 to correct" in out


def test_as_json_they_can_be_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _file(tmp_path, {"pageSize": 32})
    assert run_check(path, as_json=True) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] is False
    (violation,) = said["violations"]
    assert violation["field"] == "cache.pageSize"
    assert violation["value"] == 32
    assert violation["reason"]
    assert violation["fix"] == "64"


def test_a_file_that_is_not_there_is_a_violation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_check(tmp_path / "none.yaml", as_json=True) == 1
    assert "none.yaml" in json.loads(capsys.readouterr().out)["violations"][0]["field"]


def test_brackets_and_odd_values_are_shown_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = Violation("a[0]", {1, 2}, "[bold]not markup[/]", "[x]")
    monkeypatch.setattr(check, "validate_file", lambda _path: [odd])
    assert run_check(Path("f"), as_json=False) == 1
    assert "[bold]not" in capsys.readouterr().out
    assert run_check(Path("f"), as_json=True) == 1
    assert json.loads(capsys.readouterr().out)["violations"][0]["value"] == "{1, 2}"


def test_a_sound_file_passes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(check, "validate_file", lambda _path: [])
    assert run_check(Path("f"), as_json=False) == 0
    assert "nothing to object to" in capsys.readouterr().out
    assert run_check(Path("f"), as_json=True) == 0
    assert json.loads(capsys.readouterr().out) == {"file": "f", "ok": True, "violations": []}
