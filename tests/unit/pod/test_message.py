"""Last words reach stdout and the file; a file that cannot be written is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait.pod import message


def test_both_places(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message.leave("{}", tmp_path / "log")
    assert (tmp_path / "log").read_text() == "{}"
    assert capsys.readouterr().out == "{}\n"


def test_a_longer_message_of_before_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "termination-log"
    file.write_text("x" * 100)
    monkeypatch.setattr(message, "TERMINATION_LOG", file)
    message.leave("{}", file)
    assert file.read_text() == "{}"


def test_the_kubelets_file_is_not_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "termination-log"
    monkeypatch.setattr(message, "TERMINATION_LOG", file)
    message.leave("{}", file)
    told = capsys.readouterr()
    assert not file.exists()
    assert told.out == "{}\n"
    assert "on stdout alone" in told.err
