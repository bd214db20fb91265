"""What an engine process says it is, in the terms that peers and router compare."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.unit.engine.conftest import Place

from plait.contract.layouts import KvDtype, Layout, Role, Split
from plait.contract.violation import ContractError
from plait.engine import identity, state
from plait.model.shape import TinyShape, config_json

pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.timeout(600)]


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    from sglang.srt import runtime_context

    (tmp_path / "config.json").write_text(json.dumps(config_json(TinyShape())))
    given = SimpleNamespace(
        model_path=str(tmp_path),
        revision=None,
        disaggregation_mode="prefill",
        disaggregation_transfer_backend="mooncake_tcp",
    )
    monkeypatch.setattr(runtime_context, "get_server_args", lambda: given)
    monkeypatch.setattr(state, "kv_dtype", torch.float32)
    forget()
    yield given
    forget()


def forget() -> None:
    identity.wire_contract.cache_clear()
    identity.group_contract.cache_clear()


@pytest.mark.parametrize(
    ("mode", "role"), [("null", Role.UNIFIED), ("prefill", Role.PREFILL), ("decode", Role.DECODE)]
)
def test_the_role_is_the_disaggregation_mode(mode: str, role: Role) -> None:
    assert identity.role(SimpleNamespace(disaggregation_mode=mode)) is role


@pytest.mark.usefixtures("arguments")
def test_the_wire_contract_is_of_model_dtype_and_transport() -> None:
    contract = identity.wire_contract()
    assert contract.kv_dtype == KvDtype.FP32
    assert str(contract.transfer_backend) == "mooncake_tcp"
    assert identity.wire_hash() == contract.hash
    assert identity.wire_contract() is contract


def test_a_model_of_the_hub_has_the_contract_of_the_config_at_its_revision(
    arguments: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    local = identity.wire_hash()
    snapshot = tmp_path / "hub" / "models--lab--tiny" / "snapshots" / ("c" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text((tmp_path / "config.json").read_text())
    arguments.model_path, arguments.revision = "lab/tiny", "c" * 40
    forget()
    assert identity.wire_hash() == local
    arguments.revision = "d" * 40
    forget()
    with pytest.raises(ContractError, match="--model-path = 'lab/tiny': cannot be resolved"):
        identity.wire_contract()


@pytest.mark.usefixtures("arguments")
def test_prefill_and_decode_have_the_same_wire_hash_and_other_dtypes_another(
    monkeypatch: pytest.MonkeyPatch, place: Place
) -> None:
    place.settings(layout=Layout.SHARED)
    prefill = identity.wire_hash()
    forget()
    place.settings(layout=Layout.PLAIN)
    assert identity.wire_hash() == prefill
    forget()
    monkeypatch.setattr(state, "kv_dtype", torch.bfloat16)
    assert identity.wire_hash() != prefill


@pytest.mark.usefixtures("arguments")
def test_the_group_contract_is_of_ranks_split_and_layout(place: Place) -> None:
    hashes = set()
    for ranks, split, layout in (
        (2, Split.PAGE_INTERLEAVE, Layout.SHARED),
        (4, Split.PAGE_INTERLEAVE, Layout.SHARED),
        (2, Split.PAGE_ZIGZAG, Layout.SHARED),
        (2, Split.PAGE_INTERLEAVE, Layout.REPLICATED),
    ):
        forget()
        place.at(0, ranks)
        place.settings(layout=layout, split=split)
        hashes.add(identity.group_contract().hash)
        assert identity.group_contract().wire is identity.wire_contract()
    assert len(hashes) == 4


@pytest.mark.usefixtures("arguments")
@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_a_dtype_that_is_not_stored_is_named(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype | None
) -> None:
    monkeypatch.setattr(state, "kv_dtype", dtype)
    with pytest.raises(ValueError, match=rf"KV cache dtype is {dtype}: .*fp8_e4m3.*--kv-cache-dtype"):
        identity.wire_contract()
