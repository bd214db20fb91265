"""Files that are replaced while the router runs."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from plait.router.watched import Watch, files_of, read_file

SECOND = 1_000_000_000


class Later:
    """The machine's time, as seen `ns` later: files that a test has just written have long settled."""

    def __init__(self, ns: int = SECOND) -> None:
        self.ns = ns

    def __call__(self) -> int:
        return time.time_ns() + self.ns


def swap_link(link: Path, to: Path) -> None:
    """As the kubelet does: a new link beside, renamed over the old one."""
    fresh = link.with_name(link.name + "_tmp")
    fresh.symlink_to(to)
    fresh.rename(link)


def test_one_look_a_change(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("1")
    watch = Watch([file], clock_ns=Later())
    assert [watch.changed() for _ in range(3)] == [True, False, False]
    file.write_text("22")
    assert [watch.changed() for _ in range(3)] == [True, False, False]


def test_a_change_of_the_same_size_and_time_is_told_by_its_inode(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("1")
    about = file.stat()
    watch = Watch([file], clock_ns=Later())
    assert watch.changed()
    fresh = tmp_path / "b"
    fresh.write_text("2")
    os.utime(fresh, ns=(about.st_atime_ns, about.st_mtime_ns))
    fresh.rename(file)
    assert watch.changed()


def test_files_that_come_and_go_are_changes(tmp_path: Path) -> None:
    file = tmp_path / "a"
    watch = Watch([file], clock_ns=Later())
    assert [watch.changed(), watch.changed()] == [True, False]
    file.write_text("1")
    assert [watch.changed(), watch.changed()] == [True, False]
    file.unlink()
    assert [watch.changed(), watch.changed()] == [True, False]


def test_a_file_in_a_folder_is_watched_and_a_new_one_too(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    watch = Watch([tmp_path], clock_ns=Later())
    assert watch.changed()
    (tmp_path / "b").write_text("1")
    assert [watch.changed(), watch.changed()] == [True, False]
    (tmp_path / "b").write_text("22")
    assert [watch.changed(), watch.changed()] == [True, False]


def test_the_volume_of_a_secret_changes_by_its_link(tmp_path: Path) -> None:
    for version in ("..1", "..2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "key").write_text("same size")
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "key").symlink_to("..data/key")
    single, folder = Watch([tmp_path / "key"], clock_ns=Later()), Watch([tmp_path], clock_ns=Later())
    assert files_of(tmp_path) == [tmp_path / "key"]
    assert single.changed()
    assert folder.changed()
    swap_link(tmp_path / "..data", Path("..2"))
    assert [single.changed(), single.changed()] == [True, False]
    assert [folder.changed(), folder.changed()] == [True, False]


def test_a_file_that_is_being_written_waits_for_the_next_look(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("1")
    now = [file.stat().st_mtime_ns + SECOND]
    watch = Watch([file], clock_ns=lambda: now[0])
    assert watch.changed()
    for text in ("2", "22", "222"):
        now[0] += 10_000_000
        file.write_text(text)
        os.utime(file, ns=(now[0], now[0]))
        assert not watch.changed()
    now[0] += 49_000_000
    assert not watch.changed()
    now[0] += 2_000_000
    assert [watch.changed(), watch.changed()] == [True, False]


def test_the_first_look_does_not_wait_but_looks_once_more(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("1")
    now = [file.stat().st_mtime_ns + 1]
    watch = Watch([file], clock_ns=lambda: now[0])
    assert watch.changed()
    assert not watch.changed()
    now[0] += SECOND
    assert [watch.changed(), watch.changed()] == [True, False]


def test_a_time_to_come_does_not_hold_a_file_back(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("1")
    watch = Watch([file], clock_ns=Later())
    assert watch.changed()
    file.write_text("22")
    os.utime(file, (time.time() + 86_400, time.time() + 86_400))
    assert watch.changed()


def test_a_change_while_reading_is_told_and_not_lost(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("1")
    watch = Watch([file], clock_ns=Later())
    assert watch.changed()
    assert watch.still()
    file.write_text("22")
    assert not watch.still()
    file.write_text("1")
    assert watch.changed(), "also where it is as it was"
    assert watch.still()


def test_files_are_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(bytes(range(256)) * 100)
    assert read_file(file, limit=25_600) == bytes(range(256)) * 100


def test_what_is_too_large_or_no_file_is_an_error_and_not_a_wait(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("12345")
    with pytest.raises(OSError, match="Larger than 4 bytes"):
        read_file(file, limit=4)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="Not a regular file"):
        read_file(tmp_path / "pipe", limit=4)
    with pytest.raises(OSError, match="Not a regular file"):
        read_file(Path("/dev/zero"), limit=4)
    with pytest.raises(IsADirectoryError):
        read_file(tmp_path, limit=4)
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "none", limit=4)


def test_a_folder_gives_its_files_by_name_and_nothing_else(tmp_path: Path) -> None:
    for name in ("b", "a", ".hidden"):
        (tmp_path / name).write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "broken").symlink_to("nowhere")
    assert [p.name for p in files_of(tmp_path)] == ["a", "b", "broken"]
    assert files_of(tmp_path / "none") == [tmp_path / "none"]
