"""The operator's contract against the one that this engine would compute of itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plait.contract.layouts import Split
from plait.contract.versions import ANY_VERSION
from plait.pod.asked import Asked
from plait.pod.checks import contract

Build = Callable[..., Asked]


def test_both_roles_agree(asked: Build) -> None:
    for role in ("prefill", "decode"):
        (result,) = contract.check(asked(role=role))
        assert result.ok, result
    assert result.value.startswith("wire ")


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"layers": 4}, "wire.layers: expected 4, here 3"),
        ({"kv_dtype": "fp8_e4m3"}, "wire.kv_dtype: expected fp8_e4m3, here bfloat16"),
        ({"transfer_backend": "mooncake"}, "wire.transfer_backend: expected mooncake, here mooncake_tcp"),
        ({"model_digest": "0" * 64}, "wire.model_digest"),
        ({"wire_version": 2}, "wire.wire_version: expected 2, here 1"),
    ],
)
def test_another_wire(asked: Build, role: str, change: dict[str, Any], says: str) -> None:
    group = asked.group  # type: ignore[attr-defined]
    (result,) = contract.check(asked(role=role, group=replace(group, wire=replace(group.wire, **change))))
    assert not result.ok
    assert says in result.reason


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("field", ["engine_version", "plait_version"])
def test_another_version_matters_to_both_roles(asked: Build, role: str, field: str) -> None:
    group = replace(asked.group, **{field: "9.9"})  # type: ignore[attr-defined]
    (result,) = contract.check(asked(role=role, group=group))
    assert not result.ok
    assert f"{field}: expected 9.9" in result.reason
    assert ("one version of Plait" in result.fix) is (field == "plait_version")


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_runtime_of_ones_own_has_any_version_and_the_rest_still_counts(asked: Build, role: str) -> None:
    group = replace(asked.group, plait_version=ANY_VERSION)  # type: ignore[attr-defined]
    (result,) = contract.check(asked(role=role, group=group))
    assert result.ok, result
    (result,) = contract.check(asked(role=role, group=replace(group, engine_version="9.9")))
    assert "engine_version: expected 9.9" in result.reason
    assert "plait_version" not in result.reason


@pytest.mark.parametrize("change", [{"ranks": 4}, {"split": Split.PAGE_ZIGZAG}])
def test_another_group_matters_to_prefill_alone(asked: Build, change: dict[str, Any]) -> None:
    group = replace(asked.group, **change)  # type: ignore[attr-defined]
    (prefill,) = contract.check(asked(group=group))
    (decode,) = contract.check(asked(role="decode", group=group))
    assert not prefill.ok
    assert f"{next(iter(change))}: expected" in prefill.reason
    assert decode.ok


def test_a_pod_of_the_other_role(asked: Build) -> None:
    question = asked(role="decode")
    asked(role="prefill")  # its file takes the other's place
    (result,) = contract.check(question)
    assert "role: expected prefill, here decode" in result.reason


def test_another_model_in_the_same_folder(asked: Build, model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 5}))
    (result,) = contract.check(asked())
    assert "wire.layers: expected 3, here 5" in result.reason


def test_hashes_made_by_another_rule(asked: Build) -> None:
    question = asked()
    told = json.loads(question.contract.read_text())
    question.contract.write_text(json.dumps({**told, "wire_hash": "f" * 64}))
    (result,) = contract.check(question)
    assert not result.ok
    assert "ffff" in result.reason


@pytest.mark.parametrize(
    ("text", "says"),
    [(None, "No such file"), ("{", "is not a contract"), ('{"role": "prefill"}', "wire: Field required")],
)
def test_no_contract(asked: Build, text: str | None, says: str) -> None:
    question = asked()
    question.contract.unlink()
    if text is not None:
        question.contract.write_text(text)
    (result,) = contract.check(question)
    assert not result.ok
    assert says in result.reason


def test_no_model(asked: Build, model: Path) -> None:
    (model / "config.json").unlink()
    (result,) = contract.check(asked())
    assert not result.ok
    assert "config.json" in result.reason


def test_mooncake_forced_to_tcp_is_tcp(asked: Build) -> None:
    (result,) = contract.check(asked(backend="mooncake", env={"MC_FORCE_TCP": "1"}))
    assert result.ok


@pytest.mark.parametrize(
    ("args", "cpu", "stored"),
    [
        ({"kv_cache_dtype": "bf16"}, False, "bfloat16"),
        ({"kv_cache_dtype": "fp8_e4m3"}, False, "fp8_e4m3"),
        ({}, False, None),
        ({}, True, "bfloat16"),
        ({"dtype": "float32"}, True, "bfloat16"),
        ({"kv_cache_dtype": "auto", "dtype": "float32"}, True, "bfloat16"),
        ({"kv_cache_dtype": "bfloat16", "dtype": "float32"}, True, "bfloat16"),
    ],
)
def test_how_kv_is_stored(args: dict[str, object], cpu: bool, stored: str | None) -> None:
    assert contract.stored_dtype(args, cpu=cpu) == stored
