"""The engine's flags for a cache of a type, and for the kernels that read it."""

from __future__ import annotations

CACHES = ("fp8_e4m3", "bfloat16")
PREFILL_BACKENDS = ("flashmla_kv", "flashmla_sparse")
_DECODE_BACKEND = {"fp8_e4m3": "flashmla_kv", "bfloat16": "flashmla_sparse"}


def cache_flags(cache: str, prefill_backend: str) -> list[str]:
    """Flags of both roles: one type of cache, and decode by the kernel that reads it as it is."""
    return [
        *("--kv-cache-dtype", cache, "--dsa-prefill-backend", prefill_backend),
        *("--dsa-decode-backend", _DECODE_BACKEND[cache], "--sampling-backend", "pytorch"),
    ]
