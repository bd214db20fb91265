"""Bytes of a GPU that stock SGLang gives to weights and KV, before an engine runs: an estimate.

The engine's own default fraction is (memory - reserve) / memory. Of a prefill engine the reserve is 512 MiB,
1.5 MiB per token of a chunk and 128 MiB per rank, and at least 10 GiB.
"""

from __future__ import annotations

_MIB = 1 << 20

GPU_MEMORY = {"NVIDIA-H200": 143771 * _MIB}
"""Bytes of a GPU as its driver tells them, by the node label nvidia.com/gpu.product."""
LEAST_RESERVE = 10 * 1024 * _MIB
"""Bytes that an engine leaves to all that is neither weights nor KV, at least."""


def prefill_reserve(*, chunk: int, ranks: int) -> int:
    """Bytes that a prefill engine of `ranks` that chunks prompts by `chunk` tokens leaves to all the rest."""
    mib = 512 + 1.5 * max(chunk, 2048) + 128 * ranks
    return max(int(mib * _MIB), LEAST_RESERVE)


def engine_bytes(memory: int, *, reserve: int, fraction: float | None = None) -> int:
    """Bytes of `memory` for weights and KV. `fraction`: `mem_fraction_static`, where it is written down."""
    share = round(1 - reserve / memory, 3) if fraction is None else fraction
    return int(memory * share)
