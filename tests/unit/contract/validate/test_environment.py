import pytest

from plait.contract.validate.environment import validate_environment


def test_staging_buffers_are_refused_by_name() -> None:
    [violation] = validate_environment({"SGLANG_DISAGG_STAGING_BUFFER": "True"})
    assert violation.field == "SGLANG_DISAGG_STAGING_BUFFER"
    assert "staging" in violation.reason
    assert "unset" in violation.fix


@pytest.mark.parametrize(
    ("name", "value", "refused"),
    [
        ("SGLANG_DISAGG_STAGING_BUFFER", "0", False),
        ("SGLANG_DISAGG_STAGING_BUFFER", "", False),
        ("SGLANG_ENABLE_CP_V2", "false", True),
        ("SGLANG_ENABLE_CP_V2", "1", False),
        ("SGLANG_MOONCAKE_CUSTOM_MEM_POOL", "NVLINK", True),
        ("SGLANG_ENABLE_UNIFIED_RADIX_TREE", "y", True),
        ("SGLANG_USE_CPU_ENGINE", "1", True),
        ("SGLANG_USE_CPU_ENGINE", "0", False),
        ("SGLANG_LOG_MS", "1", False),
        ("SGLANG_DISAGGREGATION_ALL_CP_RANKS_TRANSFER", "True", False),
        ("SGLANG_DISAGGREGATION_ALL_CP_RANKS_TRANSFER", "1", False),
        ("SGLANG_DISAGGREGATION_ALL_CP_RANKS_TRANSFER", "false", True),
        ("SGLANG_DISAGGREGATION_ALL_CP_RANKS_TRANSFER", "N", True),
        # The engine takes its default, false, for a value that it cannot read.
        ("SGLANG_DISAGGREGATION_ALL_CP_RANKS_TRANSFER", "", True),
        ("SGLANG_DISAGGREGATION_ALL_CP_RANKS_TRANSFER", " true", True),
        ("SGLANG_DISAGGREGATION_ALL_CP_RANKS_TRANSFER", "on", True),
        ("SGLANG_DISABLE_DSA_INDEXER_FUSION", "1", True),
        ("SGLANG_DISABLE_DSA_INDEXER_FUSION", "0", True),
        ("SGLANG_DISABLE_DSA_INDEXER_FUSION", "", False),
    ],
)
def test_values(name: str, value: str, refused: bool) -> None:
    assert [v.field for v in validate_environment({name: value})] == ([name] if refused else [])


def test_nothing_set_is_nothing_to_refuse() -> None:
    assert validate_environment({}) == []
