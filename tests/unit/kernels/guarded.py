"""Poisoned buffers with guard bytes around them, and random peer memory: what kernel tests write to and read.

A kernel that writes a byte too many, or leaves one out, must not go unseen.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

POISON = 0xFF
GUARD = 256


class Guarded:
    """`tensor` of the shape, poisoned, with `GUARD` poisoned bytes on both sides."""

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype = torch.uint8, device: str | torch.device = "cpu"
    ) -> None:
        size = int(np.prod(shape)) * dtype.itemsize
        self._all = torch.full((GUARD + size + GUARD + 64,), POISON, dtype=torch.uint8, device=device)
        start = GUARD + -(self._all.data_ptr() + GUARD) % 64
        self._span = slice(start, start + size)
        self.tensor = self._all[self._span].view(dtype).view(shape)

    def poison(self) -> None:
        """Every byte as at the start."""
        self._all.fill_(POISON)

    def check(self) -> None:
        """Fail if a byte outside the tensor was written."""
        outside = torch.ones_like(self._all, dtype=torch.bool)
        outside[self._span] = False
        assert bool((self._all[outside] == POISON).all()), "bytes outside the output were written"


def same_bytes(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether both are equal, byte for byte (NaNs too)."""
    return bool(
        torch.equal(
            left.contiguous().view(-1).view(torch.uint8), right.contiguous().view(-1).view(torch.uint8)
        )
    )


def random_bytes(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    """uint8 of any value."""
    return torch.from_numpy(rng.integers(0, 256, shape, dtype=np.uint8))


class PeerBytes(NamedTuple):
    """All ranks' pages of one segment in one address range, holes (poison) between."""

    spanning: torch.Tensor
    stride: int
    ranks: int
    pages: int


def peer_bytes(rng: np.random.Generator, *, ranks: int, pages: int, page_bytes: int, hole: int) -> PeerBytes:
    """Random pages of `ranks` ranks; `hole` pages of poison between two ranks' segments."""
    stride = (pages + hole) * page_bytes
    size = (ranks - 1) * stride + pages * page_bytes
    spanning = torch.full((size + 16,), POISON, dtype=torch.uint8)
    spanning = spanning[-spanning.data_ptr() % 16 :][:size]
    for rank in range(ranks):
        spanning[rank * stride :][: pages * page_bytes] = random_bytes(rng, pages * page_bytes)
    return PeerBytes(spanning, stride, ranks, pages)


def random_rows(rng: np.random.Generator, count: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows of very different magnitudes, none of zeros."""
    scale = np.exp2(rng.integers(-12, 8, (count, 1)))
    return torch.from_numpy(rng.standard_normal((count, width)) * scale).to(dtype)


def random_slots(rng: np.random.Generator, count: int, *, ranks: int, pages: int) -> torch.Tensor:
    """int64 logical slots of a pool of `pages` pages a rank: each once, none reserved, some -1 instead."""
    slots = rng.permutation(np.arange(ranks * 64, ranks * pages * 64))[:count]
    slots[rng.random(count) < 0.2] = -1
    return torch.from_numpy(slots)
