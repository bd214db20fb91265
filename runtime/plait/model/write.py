"""Writing a tiny model: whole or not at all, and only when it is not there yet."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

from plait.model.sample import sample_text
from plait.model.shape import TinyShape, config_json

STAMP = "plait_model.json"
# Raise it when the generator changes what it writes for an equal shape.
GENERATOR = 1


class ModelExistsError(FileExistsError):
    """The folder is there and holds something else; names it and the way out."""


def _stamp(shape: TinyShape) -> dict[str, object]:
    text = hashlib.sha256(sample_text().encode()).hexdigest()
    return {"generator": GENERATOR, "text": text, "shape": asdict(shape)}


def _holds(folder: Path, shape: TinyShape) -> bool:
    try:
        return bool(json.loads((folder / STAMP).read_text()) == _stamp(shape))
    except (OSError, ValueError):
        return False


def _sweep(folder: Path) -> None:
    """Removes what killed runs left beside `folder` (their process is gone)."""
    for part in folder.parent.glob(f".{folder.name}.part-*"):
        pid = part.name.rpartition("-")[2]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(part, ignore_errors=True)


def _fill(folder: Path, shape: TinyShape) -> None:
    # Late: torch and safetensors cost a second, and a model that is already there needs neither.
    from safetensors.torch import save_file

    from plait.model.tokenizer import make_tokenizer, tokenizer_config_json
    from plait.model.weights import tiny_weights

    def put(name: str, content: object) -> None:
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    weights = folder / "model.safetensors"
    save_file(tiny_weights(shape), weights, metadata={"format": "pt"})
    weights.chmod(0o644)  # safetensors writes it for the owner only, unlike every other file here
    make_tokenizer().save(str(folder / "tokenizer.json"))
    put("tokenizer_config.json", tokenizer_config_json(shape.context))
    put("generation_config.json", {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0})
    put("config.json", config_json(shape))
    put(STAMP, _stamp(shape))


def write_tiny(folder: Path, shape: TinyShape, *, force: bool = False) -> bool:
    """Makes `folder` a model directory of this shape; True when it was written, False when already there.

    The files are written beside it and renamed into place, so a killed run leaves no half model.
    Raises `ModelExistsError` when the folder holds anything else and `force` is not set.
    """
    folder = folder.absolute()
    if _holds(folder, shape):
        return False
    if folder.exists() and not force and (not folder.is_dir() or any(folder.iterdir())):
        raise ModelExistsError(
            f"{folder} is there and is not this tiny model: name another folder or replace it by --force"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    _sweep(folder)
    part = folder.parent / f".{folder.name}.part-{os.getpid()}"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        _fill(part, shape)
        if folder.is_dir():
            shutil.rmtree(folder)
        elif folder.exists():
            folder.unlink()
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return True
