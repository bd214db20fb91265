"""Defaults come from the model; all refusals come at once, before anything starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plait.contract.violation import ContractError
from plait.model.shape import TinyShape, config_json
from plait.stack import options as module
from plait.stack.options import cuda_devices, resolve
from plait.stack.plan import StackOptions


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(config_json(TinyShape(context=1000))))
    return tmp_path


def _resolve(model: Path, **changes: Any) -> StackOptions:
    plain: dict[str, Any] = {
        "model": model,
        "cp": 4,
        "decode": 1,
        "layout": "shared",
        "split": "page-interleave",
        "chunk": 128,
        "context_length": None,
        "max_total_tokens": None,
        "cpu": True,
        "host": "127.0.0.1",
        "prefill_args": (),
        "decode_args": (),
        "folder": Path("/runs/one"),
    }
    return resolve(**{**plain, **changes})


def _fields(model: Path, **changes: Any) -> list[str]:
    with pytest.raises(ContractError) as caught:
        _resolve(model, **changes)
    return [violation.field for violation in caught.value.violations]


def test_lengths_follow_the_model_in_whole_stripes(model: Path) -> None:
    options = _resolve(model)
    assert options.context_length == 1000
    assert options.max_total_tokens == 2048  # two requests, rounded up to 4 ranks x 64 tokens
    assert options.decode_max_total_tokens == 2048
    assert options.devices == ()


def test_lengths_given_are_kept(model: Path) -> None:
    options = _resolve(model, context_length=512, max_total_tokens=768)
    assert (options.context_length, options.max_total_tokens) == (512, 768)


def test_all_refusals_come_at_once(model: Path) -> None:
    changes = {
        "cp": 1,
        "decode": 0,
        "layout": "plain",
        "split": "zigzag",
        "chunk": 100,
        "context_length": 1001,
    }
    fields = _fields(model, **changes)
    assert fields == ["--layout", "--split", "--cp", "--decode", "--chunk", "--context-length"]


@pytest.mark.parametrize("chunk", [0, -64, 63, 65])
def test_a_chunk_is_whole_pages(model: Path, chunk: int) -> None:
    assert _fields(model, chunk=chunk) == ["--chunk"]


def test_a_pool_is_whole_stripes(model: Path) -> None:
    assert _fields(model, max_total_tokens=4096 + 64) == ["--max-total-tokens"]


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    assert _fields(tmp_path / "none") == [str(tmp_path / "none")]


def test_gpus_must_suffice_for_every_rank_and_engine(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    assert _fields(model, cpu=None) == ["--gpu"]
    assert _resolve(model, cpu=None, cp=3).devices == ("0", "1", "2", "3")
    assert _resolve(model, cpu=True).devices == ()


def test_on_gpus_a_pool_is_only_as_the_user_says(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4")
    options = _resolve(model, cpu=None)
    assert (options.max_total_tokens, options.decode_max_total_tokens) == (None, None)
    options = _resolve(model, cpu=None, max_total_tokens=4096)
    assert (options.max_total_tokens, options.decode_max_total_tokens) == (4096, None)
    assert _fields(model, cpu=None, max_total_tokens=4096 + 64) == ["--max-total-tokens"]


def test_without_a_device_the_cpu_is_taken(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cuda_devices", list)
    assert _resolve(model, cpu=None).cpu is True


def test_devices_are_those_that_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", " 3, 1 ")
    assert cuda_devices() == ["3", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert cuda_devices() == []
