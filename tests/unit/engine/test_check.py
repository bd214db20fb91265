"""Refusals: one validator, all reasons at once, before torch and again inside the engine."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

import pytest

from plait.contract.layouts import Layout
from plait.contract.settings import Settings
from plait.contract.violation import ContractError
from plait.engine import check, state
from plait.model.shape import TinyShape, config_json

GOOD = {
    "disaggregation_mode": "prefill",
    "tp_size": 2,
    "attn_cp_size": 2,
    "enable_prefill_cp": True,
    "cp_strategy": "interleave",
    "disable_overlap_schedule": True,
}


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(config_json(TinyShape())))
    return str(tmp_path)


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> object:
    """The refusal of a call that must end the process."""

    def run(call: object, *given: object) -> str:
        with pytest.raises(SystemExit) as end:
            call(*given)
        assert end.value.code == 78
        return capsys.readouterr().err

    return run


def flags(model: str) -> list[str]:
    return [
        *("--model-path", model, "--disaggregation-mode", "prefill", "--tp-size", "2"),
        *("--attn-cp-size", "2", "--enable-prefill-cp", "--cp-strategy", "interleave"),
        "--disable-overlap-schedule",
    ]


def test_what_is_served_passes(model: str) -> None:
    check.refuse_or_pass(flags(model), {"PLAIT_LAYOUT": "shared"})


def test_off_is_never_refused() -> None:
    check.refuse_or_pass(["--anything"], {"SGLANG_PLUGINS": "other"})
    check.refuse_or_pass(["--anything"], {"PLAIT_LAYOUT": "off", "SGLANG_PLUGINS": "other"})


def test_reasons_are_counted_and_listed(model: str, refused: object) -> None:
    said = refused(check.refuse_or_pass, [*flags(model), "--page-size", "16"], {"PLAIT_LAYOUT": "shared"})
    assert said.startswith("plait: this engine is refused (1 reason):\n  ")
    said = refused(
        check.refuse_or_pass,
        [*flags(model), "--page-size", "16", "--enable-lora"],
        {"PLAIT_LAYOUT": "shared", "SGLANG_PLUGINS": "other"},
    )
    assert said.startswith("plait: this engine is refused (3 reasons):\n")
    for named in ("page_size", "enable_lora", "SGLANG_PLUGINS"):
        assert named in said


@pytest.mark.parametrize("chosen", ["plait", "other, plait", "", " "])
def test_a_filter_that_lets_the_plugin_in_passes(model: str, chosen: str) -> None:
    check.refuse_or_pass(flags(model), {"PLAIT_LAYOUT": "shared", "SGLANG_PLUGINS": chosen})


def test_a_missing_entry_point_is_refused(
    model: str, refused: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [])
    said = refused(check.refuse_or_pass, flags(model), {"PLAIT_LAYOUT": "shared"})
    assert "sglang.srt.plugins" in said
    assert "no entry point 'plait'" in said


def test_a_missing_or_other_engine_is_refused(
    model: str, refused: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    assert check.engine_version() == "0.5.17"
    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert check.engine_version() is None
    assert "no sglang is installed" in refused(check.refuse_or_pass, flags(model), {"PLAIT_LAYOUT": "shared"})


def test_the_engine_refuses_its_own_arguments_too(
    model: str, refused: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "settings", Settings(layout=Layout.SHARED))
    check.refuse_arguments({**GOOD, "model_path": model})
    said = refused(check.refuse_arguments, {**GOOD, "model_path": model, "pp_size": 2, "enable_lora": True})
    assert "pp_size" in said
    assert "enable_lora" in said


def test_a_model_that_is_not_served_is_refused_by_the_engine(
    model: str, refused: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "settings", Settings(layout=Layout.SHARED))
    config = json.loads((Path(model) / "config.json").read_text())
    (Path(model) / "config.json").write_text(json.dumps({**config, "index_topk_freq": 2}))
    assert "index_topk_freq" in refused(check.refuse_arguments, {**GOOD, "model_path": model})


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An offline hub cache of `lab/tiny`: main has 4 layers, v2 shares selections."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    repository = tmp_path / "hub" / "models--lab--tiny"
    config = config_json(TinyShape(layers=4))
    for name, commit, content in (
        ("main", "a" * 40, config),
        ("v2", "b" * 40, {**config, "index_topk_freq": 2}),
    ):
        (repository / "refs").mkdir(parents=True, exist_ok=True)
        (repository / "refs" / name).write_text(commit)
        (repository / "snapshots" / commit).mkdir(parents=True)
        (repository / "snapshots" / commit / "config.json").write_text(json.dumps(content))
    return repository


@pytest.mark.usefixtures("hub")
def test_a_hub_id_is_read_from_its_own_revision() -> None:
    assert check.model_shape("lab/tiny", revision=None).num_hidden_layers == 4
    assert check.model_shape("lab/tiny", revision="b" * 40).index_topk_freq == 2


@pytest.mark.usefixtures("hub")
def test_a_model_of_the_hub_is_checked_by_the_engine(
    refused: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "settings", Settings(layout=Layout.SHARED))
    check.refuse_arguments({**GOOD, "model_path": "lab/tiny", "revision": None})
    said = refused(check.refuse_arguments, {**GOOD, "model_path": "lab/tiny", "revision": "v2"})
    assert "index_topk_freq" in said


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("named", ["lab/other", "/no/such/folder", ""])
def test_a_model_that_cannot_be_resolved_is_refused_with_the_rest(
    named: str, refused: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "settings", Settings(layout=Layout.SHARED))
    said = refused(check.refuse_arguments, {**GOOD, "model_path": named, "enable_lora": True})
    assert f"--model-path = {named!r}: cannot be resolved" in said
    assert "enable_lora" in said


def test_a_hub_model_without_a_config_is_refused(hub: Path) -> None:
    (hub / "snapshots" / ("a" * 40) / "config.json").unlink()
    with pytest.raises(ContractError, match="--model-path = 'lab/tiny': cannot be resolved"):
        check.model_shape("lab/tiny", revision=None)
    with pytest.raises(ContractError, match="cannot be resolved at revision 'v9'"):
        check.model_shape("lab/tiny", revision="v9")


def test_what_the_engine_made_of_its_arguments_is_checked(refused: object) -> None:
    from plait.contract.validate.constraints import RESOLVED

    field = next(iter(RESOLVED))
    assert field in refused(check.refuse_resolved, {field: "something that no engine means"})
