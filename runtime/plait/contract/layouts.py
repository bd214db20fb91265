"""Names of the choices that a contract is made of: layout, split, transfer backend, page size."""

from __future__ import annotations

from enum import StrEnum

PAGE_SIZE = 64
"""Tokens per page. Fixed: the FP8 sparse attention kernels and the indexer both read pages of 64."""


class Layout(StrEnum):
    """Where the pages of a context-parallel (CP) group live."""

    OFF = "off"
    """The plugin does nothing."""
    PLAIN = "plain"
    """Stock storage, with Plait's contract, transfer and status: what a decode engine uses."""
    REPLICATED = "replicated"
    """Plait's split, allocator and batch formation, but every rank keeps all pages: the reference."""
    SHARED = "shared"
    """Each rank keeps only the pages it owns: one copy per CP group."""

    @property
    def splits(self) -> bool:
        """Whether page ownership decides which rank computes which token (replicated and shared)."""
        return self in (Layout.REPLICATED, Layout.SHARED)


class Split(StrEnum):
    """Which rank the allocator prefers for a sequence's next page. Ownership then decides who computes it."""

    PAGE_INTERLEAVE = "page-interleave"
    """The next rank after the owner of the last page."""
    PAGE_ZIGZAG = "page-zigzag"
    """2N page-aligned segments per chunk; rank r prefers segments r and 2N-1-r."""


class TransferBackend(StrEnum):
    """Prefill -> decode transports that carry owned pages with their logical positions."""

    MOONCAKE = "mooncake"
    """RDMA."""
    MOONCAKE_TCP = "mooncake_tcp"
    """mooncake with its TCP transport forced (the engine sets MC_FORCE_TCP=1 for this name)."""


class Role(StrEnum):
    """What an engine is to the stack."""

    PREFILL = "prefill"
    DECODE = "decode"
    UNIFIED = "unified"
    """Prefill and decode in one engine (the stock default)."""


class KvDtype(StrEnum):
    """How the MLA latent rows are stored."""

    FP8_E4M3 = "fp8_e4m3"
    """Packed: FP8 latent, one fp32 scale per 128 values, bf16 rope."""
    BF16 = "bfloat16"
    FP32 = "float32"
    """The CPU reference."""
