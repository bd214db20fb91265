"""What an engine gives to weights and KV, by the engine's own default."""

import pytest

from plait.contract.gpu_memory import GPU_MEMORY, LEAST_RESERVE, engine_bytes, prefill_reserve

_MIB = 1 << 20


@pytest.mark.parametrize(
    ("chunk", "ranks", "mib"),
    [
        (8192, 8, 512 + 12288 + 1024),
        (16384, 2, 512 + 24576 + 256),
        (64, 8, 10 * 1024),  # small chunks: the least that is left
    ],
)
def test_the_reserve_grows_with_chunk_and_ranks(chunk: int, ranks: int, mib: int) -> None:
    assert prefill_reserve(chunk=chunk, ranks=ranks) == mib * _MIB


def test_the_share_is_rounded_as_the_engine_rounds_it() -> None:
    memory = GPU_MEMORY["NVIDIA-H200"]
    assert engine_bytes(memory, reserve=LEAST_RESERVE) == int(memory * 0.929)
    assert engine_bytes(memory, reserve=LEAST_RESERVE, fraction=0.5) == memory // 2
