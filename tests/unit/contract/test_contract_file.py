"""The contract as a file: whole for prefill, wire alone for decode, and refused where it is not one."""

from __future__ import annotations

import pytest

from plait.contract.contract_file import ContractFile
from plait.contract.kv import GroupContract, WireContract
from plait.contract.layouts import Layout, Split
from plait.contract.violation import ContractError

WIRE = WireContract(
    model_digest="d" * 64,
    layers=4,
    page_size=64,
    kv_dtype="float32",
    index_dtype="fp8_e4m3",
    mla_row_bytes=2304,
    index_row_bytes=132,
    draft_layers=0,
    transfer_backend="mooncake_tcp",
)
GROUP = GroupContract(
    wire=WIRE,
    ranks=2,
    split=Split.PAGE_INTERLEAVE,
    layout=Layout.SHARED,
    engine_version="0.5.17",
    plait_version="0.1.0",
)


def test_prefill_comes_back_whole() -> None:
    file = ContractFile.model_validate_json(ContractFile.of(GROUP, role="prefill").model_dump_json())
    assert file.group_contract() == GROUP
    assert (file.wire_hash, file.group_hash) == (WIRE.hash, GROUP.hash)


def test_decode_has_the_wire_alone() -> None:
    file = ContractFile.of(GROUP, role="decode")
    assert file.wire_contract() == WIRE
    assert (file.group, file.group_hash, file.group_contract()) == (None, "", None)


@pytest.mark.parametrize("field", ["ranks", "split", "layout"])
def test_a_group_without_a_field_is_refused(field: str) -> None:
    file = ContractFile.of(GROUP, role="prefill")
    assert file.group is not None
    less = {name: value for name, value in file.group.items() if name != field}
    with pytest.raises(ContractError, match="one version of Plait"):
        file.model_copy(update={"group": less}).group_contract()


@pytest.mark.parametrize("told", [{"layout": "striped"}, {"split": "by-token"}, {"colour": 1}])
def test_a_group_of_another_version_is_refused(told: dict[str, object]) -> None:
    file = ContractFile.of(GROUP, role="prefill")
    assert file.group is not None
    with pytest.raises(ContractError, match="group"):
        file.model_copy(update={"group": {**file.group, **told}}).group_contract()


def test_a_wire_without_a_field_is_refused() -> None:
    file = ContractFile.of(GROUP, role="prefill").model_copy(update={"wire": {"layers": 4}})
    with pytest.raises(ContractError, match="model_digest"):
        file.group_contract()
