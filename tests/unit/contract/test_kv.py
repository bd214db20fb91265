import dataclasses
import json
import os
import subprocess
import sys

import pytest

from plait.contract.kv import GroupContract, WireContract, diff, transfer_backend
from plait.contract.layouts import Layout, Split, TransferBackend
from plait.contract.shape import ModelShape
from plait.contract.violation import ContractError

SHAPE = ModelShape(
    architectures=("GlmMoeDsaForCausalLM",),
    model_type="glm_moe_dsa",
    num_hidden_layers=3,
    hidden_size=256,
    num_attention_heads=8,
    vocab_size=512,
    kv_lora_rank=512,
    qk_rope_head_dim=64,
    qk_nope_head_dim=192,
    v_head_dim=256,
    index_n_heads=16,
    index_head_dim=128,
    index_topk=64,
)
WIRE = WireContract.of(SHAPE, kv_dtype="fp8_e4m3", transfer_backend="mooncake_tcp")
GROUP = GroupContract(
    wire=WIRE,
    ranks=4,
    split=Split.PAGE_INTERLEAVE,
    layout=Layout.SHARED,
    engine_version="0.5.17",
    plait_version="0.1.0",
)


def other(value: object) -> object:
    if isinstance(value, Split):
        return Split.PAGE_ZIGZAG
    if isinstance(value, Layout):
        return Layout.REPLICATED
    return value + 1 if isinstance(value, int) else f"{value}x"


def test_wire_of_a_model() -> None:
    assert (WIRE.layers, WIRE.page_size, WIRE.mla_row_bytes, WIRE.index_row_bytes) == (3, 64, 656, 132)
    assert WIRE.model_digest == SHAPE.digest()
    assert WireContract.of(SHAPE, kv_dtype="bf16", transfer_backend="mooncake").kv_dtype == "bfloat16"


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(WireContract)])
def test_every_wire_field_moves_both_hashes_and_shows_in_the_diff(field: str) -> None:
    changed = dataclasses.replace(WIRE, **{field: other(getattr(WIRE, field))})
    assert changed.hash != WIRE.hash
    [difference] = diff(WIRE, changed)
    assert difference == (field, getattr(WIRE, field), getattr(changed, field))
    group = dataclasses.replace(GROUP, wire=changed)
    assert group.hash != GROUP.hash
    assert [d.field for d in diff(GROUP, group)] == [f"wire.{field}"]


@pytest.mark.parametrize("field", ["ranks", "split", "layout", "engine_version", "plait_version"])
def test_every_group_field_moves_the_group_hash_alone(field: str) -> None:
    changed = dataclasses.replace(GROUP, **{field: other(getattr(GROUP, field))})
    assert changed.hash != GROUP.hash
    assert changed.wire.hash == GROUP.wire.hash
    assert [d.field for d in diff(GROUP, changed)] == [field]


def test_equal_contracts_have_no_diff_and_one_hash() -> None:
    again = WireContract.of(SHAPE, kv_dtype="fp8_e4m3", transfer_backend=TransferBackend.MOONCAKE_TCP)
    assert again.hash == WIRE.hash
    assert diff(again, WIRE) == []
    assert len({WIRE.hash, GROUP.hash}) == 2


def test_hash_is_the_same_in_another_process_and_field_order() -> None:
    code = (
        "import json, sys; from plait.contract.kv import WireContract;"
        "print(WireContract.from_dict(json.load(sys.stdin)).hash)"
    )
    told = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(dict(reversed(WIRE.to_dict().items()))),
        env={**os.environ, "PYTHONHASHSEED": "3"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == WIRE.hash


def test_from_dict_refuses_other_versions_by_field() -> None:
    data = WIRE.to_dict()
    assert WireContract.from_dict(data) == WIRE
    data.pop("layers")
    data |= {"page_size": "64", "colour": 1, "draft_layers": True}
    with pytest.raises(ContractError) as caught:
        WireContract.from_dict(data)
    assert {v.field for v in caught.value.violations} == {"layers", "page_size", "colour", "draft_layers"}


def test_transfer_backend_is_what_the_engine_really_uses() -> None:
    assert transfer_backend("mooncake", {}) == "mooncake"
    assert transfer_backend("mooncake", {"MC_FORCE_TCP": "1"}) == "mooncake_tcp"
    assert transfer_backend("mooncake_tcp", {}) == "mooncake_tcp"
    with pytest.raises(ContractError, match="nixl"):
        transfer_backend("nixl", {})
    with pytest.raises(ContractError, match="fake"):
        WireContract.of(SHAPE, kv_dtype="bf16", transfer_backend="fake")
