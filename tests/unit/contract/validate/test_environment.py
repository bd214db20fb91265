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
    ],
)
def test_values(name: str, value: str, refused: bool) -> None:
    assert [v.field for v in validate_environment({name: value})] == ([name] if refused else [])
