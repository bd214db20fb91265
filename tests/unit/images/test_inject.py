"""The injector: whole or not at all, again and again, as any user."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

INJECT = Path(__file__).parents[3] / "images/runtime/inject.py"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """/opt/plait of an image, with a small tree."""
    folder = tmp_path / "opt/plait"
    (folder / "site/plait").mkdir(parents=True)
    (folder / "site/plait/__init__.py").write_text("x = 1\n")
    (folder / "site/plait-tree.json").write_text('{"plait": "1"}\n')
    shutil.copy(INJECT, folder / "inject")
    return folder


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    folder = tmp_path / "volume"
    folder.mkdir()
    return folder


def inject(image: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(image / "inject"), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def contents(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


def test_a_fresh_volume(image: Path, volume: Path) -> None:
    run = inject(image, str(volume))
    assert run.returncode == 0, run.stderr
    assert '{"plait": "1"}' in run.stdout
    assert contents(volume / "site") == contents(image / "site")
    assert [each.name for each in volume.iterdir()] == ["site"]


def test_again_it_is_left_alone(image: Path, volume: Path) -> None:
    inject(image, str(volume))
    before = (volume / "site").stat().st_ino
    run = inject(image, str(volume))
    assert (run.returncode, "already" in run.stdout) == (0, True)
    assert (volume / "site").stat().st_ino == before


def test_another_tree_takes_its_place(image: Path, volume: Path) -> None:
    inject(image, str(volume))
    (image / "site/plait/__init__.py").write_text("x = 2\n")
    (image / "site/plait/new.py").write_text("")
    (image / "site/plait-tree.json").write_text('{"plait": "2"}\n')
    assert inject(image, str(volume)).returncode == 0
    assert contents(volume / "site") == contents(image / "site")
    assert [each.name for each in volume.iterdir()] == ["site"]


@pytest.mark.parametrize("left", [".site-new", ".site-old"])
def test_what_a_killed_run_left_is_cleared(image: Path, volume: Path, left: str) -> None:
    (volume / left / "plait").mkdir(parents=True)
    (volume / left / "plait/half.py").write_text("x =")
    assert inject(image, str(volume)).returncode == 0
    assert contents(volume) == {f"site/{k}": v for k, v in contents(image / "site").items()}


def test_a_tree_without_its_marker_counts_as_none(image: Path, volume: Path) -> None:
    (volume / "site/plait").mkdir(parents=True)
    (volume / "site/plait/old.py").write_text("")
    assert inject(image, str(volume)).returncode == 0
    assert "plait/old.py" not in contents(volume / "site")


def test_readable_to_whoever_the_engine_runs_as(image: Path, volume: Path) -> None:
    inject(image, str(volume))
    for path in [volume / "site", *(volume / "site").rglob("*")]:
        assert path.stat().st_mode & 0o004, path
    # Of no use to others than its owner are links and special files, and there are none.
    assert all(p.is_dir() or p.is_file() for p in (volume / "site").rglob("*"))


@pytest.mark.parametrize(("words", "status"), [([], 2), (["--help"], 2), (["a", "b"], 2), (["/no/such"], 1)])
def test_wrong_words(image: Path, words: list[str], status: int) -> None:
    run = inject(image, *words)
    assert run.returncode == status
    assert run.stderr.startswith("usage" if status == 2 else "inject: /no/such: is not a folder")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_as_another_user_without_rights_it_says_so(image: Path, volume: Path) -> None:
    def become_nobody() -> None:
        os.setgroups([])
        os.setgid(65532)
        os.setuid(65532)

    for folder in (image, *image.parents):
        if folder.stat().st_uid == 0 and folder.is_relative_to("/tmp") and folder != Path("/tmp"):
            folder.chmod(0o755)
    command = [shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable, "-I"]
    command += [str(image / "inject"), str(volume)]
    volume.chmod(0o755)
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, preexec_fn=become_nobody)
    assert run.returncode == 1
    assert "Permission denied" in run.stderr
    volume.chmod(0o777)
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, preexec_fn=become_nobody)
    assert run.returncode == 0, run.stderr
    assert contents(volume / "site") == contents(image / "site")
