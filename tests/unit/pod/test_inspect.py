"""What an inspection tells of a model's folder: whole, small enough, or every reason why not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from plait.contract.shape import ModelShape
from plait.contract.verdict import MESSAGE_LIMIT, read_inspected
from plait.pod.inspect import chosen, inspect

CONFIG: dict[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 3,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "vocab_size": 512,
    "kv_lora_rank": 512,
    "q_lora_rank": 128,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "index_n_heads": 16,
    "index_head_dim": 128,
    "index_topk": 64,
    "index_topk_pattern": ["F", "S"],
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
    "rope_theta": 1000000,
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0},
    "id2label": {"0": "A"},
    "quantization_config": {"quant_method": "fp8", "modules_to_not_convert": ["layer"] * 5000},
}


def folder(tmp_path: Path, config: object) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_the_shape_survives(tmp_path: Path) -> None:
    found = read_inspected(inspect(str(folder(tmp_path, CONFIG)), None).message())
    assert found.ok
    assert ModelShape.from_config(found.config) == ModelShape.from_config(CONFIG)
    assert ModelShape.from_config(found.config).digest() == ModelShape.from_config(CONFIG).digest()


@pytest.mark.parametrize("name", sorted({f.name for f in fields(ModelShape)} & set(CONFIG)))
def test_no_field_of_a_shape_is_left_out(name: str) -> None:
    assert name in chosen(CONFIG)


def test_a_config_file_by_its_name(tmp_path: Path) -> None:
    file = folder(tmp_path, CONFIG) / "config.json"
    assert inspect(str(file), None).ok


@pytest.mark.parametrize(
    ("config", "fields_told"),
    [
        ({}, {"architectures", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"}),
        ({**CONFIG, "hidden_size": "256"}, {"hidden_size"}),
        ([], {""}),
    ],
)
def test_all_that_is_wrong_is_told(tmp_path: Path, config: object, fields_told: set[str]) -> None:
    found = inspect(str(folder(tmp_path, config)), None)
    assert not found.ok
    assert all(error.fix and error.reason for error in found.errors)
    told = {error.field.removeprefix(f"{tmp_path}/config.json").lstrip(":") for error in found.errors}
    assert fields_told <= told


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    (error,) = inspect(str(tmp_path), None).errors
    assert error.field == f"{tmp_path}/config.json"
    assert "cannot be read" in error.reason


def test_a_config_that_has_no_room(tmp_path: Path) -> None:
    big = {**CONFIG, "rope_scaling": {"short_factor": [1.5] * 2000}}
    (error,) = inspect(str(folder(tmp_path, big)), None).errors
    assert str(MESSAGE_LIMIT) in error.fix
    assert "spec.model.shape" in error.fix


def ended(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "plait.pod.inspect", *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, "HF_HUB_OFFLINE": "1"}
    )


def test_the_command(tmp_path: Path) -> None:
    message = tmp_path / "message"
    run = ended("--model", str(folder(tmp_path, CONFIG)), "--message", str(message))
    assert run.returncode == 0
    assert message.read_text() == run.stdout.strip()
    assert read_inspected(run.stdout).ok


def test_a_model_that_hangs_does_not_hang_the_command(tmp_path: Path) -> None:
    # Opening a pipe that nobody writes to waits for ever, as a dead network file system does.
    os.mkfifo(tmp_path / "config.json")
    run = ended("--model", str(tmp_path), "--message", str(tmp_path / "message"), "--deadline-s", "0.3")
    assert run.returncode == 1
    (error,) = read_inspected(run.stdout).errors
    assert "within 0.3 s" in error.reason
    assert "Fix: see whether the model's volume" in run.stderr


def test_wrong_usage_is_told_in_the_message_too() -> None:
    run = ended("--modell", "x")
    assert run.returncode == 2
    assert read_inspected(run.stdout).errors[0].field == "usage"
