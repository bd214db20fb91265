"""The record of the list of workers: what one admin process leaves to the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait.router.directory import Directory, Known
from plait.router.discovery.target import Target
from plait.router.processes.record import load, save

P = Target.prefill("http://p:1", bootstrap_port=8998)
D1 = Target.decode("http://d:1", identity="pod-é")
D2 = Target.decode("http://d:2")


def test_next_directory_goes_on_where_this_one_was(tmp_path: Path) -> None:
    directory = Directory(lambda desired: None)
    directory.discovered((P, D1, D2))
    directory.add(Target.decode("http://d:3"))
    directory.remove(D1.url)
    directory.drain(D2.url)
    path = str(tmp_path / "record")
    save(path, directory.known)
    applied = []
    after = Directory(applied.append, known=load(path))
    assert after.desired == directory.desired
    assert after.known == directory.known
    assert applied == []
    # What the source says next changes nothing of what the admin API had changed.
    after.discovered((P, D1, D2))
    directory.discovered((P, D1, D2))
    assert applied == [directory.desired]
    assert after.source_of("http://d:3") == "admin"


def test_no_record_is_nothing_known(tmp_path: Path) -> None:
    assert load(str(tmp_path / "none")) == Known()


@pytest.mark.parametrize("content", [b"", b"[", b"{}", b"[[], []]", b"[[[]], [], [], []]", b"7"])
def test_record_that_cannot_be_read_is_told_and_nothing_known(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "record"
    path.write_bytes(content)
    assert load(str(path)) == Known()
    assert "cannot be read" in caplog.text


def test_record_that_cannot_be_written_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(str(tmp_path / "no-folder" / "record"), Known((P,)))
    assert "cannot be recorded" in caplog.text


def test_record_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "record"
    save(str(path), Known((P, D1)))
    inode = path.stat().st_ino
    save(str(path), Known((P,)))
    assert path.stat().st_ino != inode
    assert load(str(path)) == Known((P,))
    assert [p.name for p in tmp_path.iterdir()] == ["record"]
