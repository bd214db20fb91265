"""A tiny model is written whole or not at all, once, and never over something else."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from plait.model import write
from plait.model.shape import TinyShape
from plait.model.write import ModelExistsError, write_tiny

SMALL = TinyShape(layers=2)


def _digest(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_two_folders_of_one_shape_are_equal_bit_for_bit(tmp_path: Path) -> None:
    assert write_tiny(tmp_path / "a", SMALL)
    assert write_tiny(tmp_path / "b", SMALL)
    assert _digest(tmp_path / "a") == _digest(tmp_path / "b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_model_that_is_there_is_left_alone(tmp_path: Path) -> None:
    write_tiny(tmp_path / "a", SMALL)
    before = (tmp_path / "a" / "model.safetensors").stat().st_mtime_ns
    assert not write_tiny(tmp_path / "a", SMALL)
    assert (tmp_path / "a" / "model.safetensors").stat().st_mtime_ns == before


def test_another_model_is_replaced_only_on_demand(tmp_path: Path) -> None:
    write_tiny(tmp_path / "a", SMALL)
    other = TinyShape(layers=2, topk=128)
    with pytest.raises(ModelExistsError, match="--force"):
        write_tiny(tmp_path / "a", other)
    assert write_tiny(tmp_path / "a", other, force=True)
    assert '"index_topk": 128' in (tmp_path / "a" / "config.json").read_text()


def test_a_foreign_folder_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "thesis.txt").write_text("mine")
    with pytest.raises(ModelExistsError, match="is not this tiny model"):
        write_tiny(tmp_path / "a", SMALL)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["thesis.txt"]


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path, shape: TinyShape) -> None:
        (folder / "config.json").write_text("{}")
        raise OSError("no space left")

    monkeypatch.setattr(write, "_fill", full)
    with pytest.raises(OSError, match="no space"):
        write_tiny(tmp_path / "a", SMALL)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_run_leaves_no_model_and_the_next_one_sweeps(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from plait.model import write\n"
        "from plait.model.shape import TinyShape\n"
        "write._fill = lambda f, s: ((f / 'config.json').write_text('{}'), os.kill(os.getpid(), 9))\n"
        "write.write_tiny(Path(sys.argv[1]), TinyShape(layers=2))\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a")], env=dict(os.environ))
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "a").exists()
    assert len(list(tmp_path.iterdir())) == 1
    assert write_tiny(tmp_path / "a", SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
