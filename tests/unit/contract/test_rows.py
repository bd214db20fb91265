import pytest

from plait.contract.layouts import KvDtype
from plait.contract.rows import index_row_bytes, kv_dtype, mla_row_bytes, page_bytes, row_bytes
from plait.contract.violation import ContractError


@pytest.mark.parametrize(("dtype", "bytes_"), [("fp8_e4m3", 656), ("bfloat16", 1152), ("float32", 2304)])
def test_mla_rows_of_the_real_shape(dtype: str, bytes_: int) -> None:
    assert mla_row_bytes(dtype, kv_lora_rank=512, qk_rope_head_dim=64) == bytes_


def test_index_row_and_pages() -> None:
    assert index_row_bytes(index_head_dim=128) == 132
    assert index_row_bytes(index_head_dim=256) == 264
    rows = row_bytes(KvDtype.FP8_E4M3, kv_lora_rank=512, qk_rope_head_dim=64, index_head_dim=128)
    assert (rows.mla, rows.index, rows.total, rows.page) == (656, 132, 788, 64 * 788)
    assert page_bytes(rows.index) == 64 * 128 + 64 * 4


def test_other_sizes() -> None:
    assert mla_row_bytes("fp8_e4m3", kv_lora_rank=256, qk_rope_head_dim=32) == 256 + 8 + 64
    assert mla_row_bytes("bf16", kv_lora_rank=100, qk_rope_head_dim=32) == 264


@pytest.mark.parametrize("name", ["bf16", "bfloat16"])
def test_engine_names_of_bf16(name: str) -> None:
    assert kv_dtype(name) is KvDtype.BF16


def test_errors_name_field_value_and_fix() -> None:
    with pytest.raises(ContractError) as caught:
        mla_row_bytes("fp8_e4m3", kv_lora_rank=500, qk_rope_head_dim=64)
    [violation] = caught.value.violations
    assert (violation.field, violation.value) == ("kv_lora_rank", 500)
    assert "128" in violation.fix
    with pytest.raises(ContractError, match="index_head_dim = 64"):
        index_row_bytes(index_head_dim=64)
    with pytest.raises(ContractError, match="fp8_e5m2"):
        mla_row_bytes("fp8_e5m2", kv_lora_rank=512, qk_rope_head_dim=64)
    with pytest.raises(ContractError, match=r"args\.kv_cache_dtype"):
        kv_dtype("int4", field="args.kv_cache_dtype")


@pytest.mark.parametrize("bad", [0, -512, True, 512.0])
def test_sizes_are_positive_whole_numbers(bad: int) -> None:
    with pytest.raises(ContractError, match="kv_lora_rank"):
        mla_row_bytes("bfloat16", kv_lora_rank=bad, qk_rope_head_dim=64)


def test_both_bad_sizes_are_told() -> None:
    with pytest.raises(ContractError) as caught:
        mla_row_bytes("float32", kv_lora_rank=0, qk_rope_head_dim=-1)
    assert [v.field for v in caught.value.violations] == ["kv_lora_rank", "qk_rope_head_dim"]
