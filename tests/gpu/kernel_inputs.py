"""Inputs and outputs of a kernel's case on a device: random, guarded, poisoned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from tests.unit.kernels.guarded import Guarded

from plait.contract.layouts import PAGE_SIZE
from plait.kernels import store_mla
from plait.kernels.trials import same

RANKS = 4
Run = Callable[..., Any]


class Case(NamedTuple):
    """run(config), reference(): fill `outputs`. nbytes: read and written, each useful byte once a way."""

    run: Run
    reference: Run
    outputs: tuple[Guarded, ...]
    nbytes: int
    compare: Callable[[torch.Tensor, torch.Tensor], None] = same

    def check(self, config: Any) -> None:
        """Raise unless kernel and reference leave the same bytes, and none outside the outputs."""
        left = []
        for go in (lambda: self.run(config), self.reference):
            for out in self.outputs:
                out.poison()
            go()
            for out in self.outputs:
                out.check()
            left.append([out.tensor.clone() for out in self.outputs])
        for kernel, reference in zip(*left, strict=True):
            self.compare(kernel, reference)


class Maker:
    """Random inputs on `device`; holes: ids and slots may be -1, row counts odd."""

    def __init__(self, seed: int, device: torch.device, *, holes: bool) -> None:
        self.rng, self.device, self.holes = np.random.default_rng(seed), device, holes
        self._torch = torch.Generator(device).manual_seed(seed)

    def ids(self, values: Any, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        ids = np.asarray(values).astype(np.int64)
        if self.holes:
            ids = np.where(self.rng.random(ids.shape) < 0.1, -1, ids)
        return torch.from_numpy(ids).to(dtype).to(self.device)

    def plain(self, values: Any, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.from_numpy(np.asarray(values).astype(np.int64)).to(dtype).to(self.device)

    def bytes(self, *shape: int) -> torch.Tensor:
        size = int(np.prod(shape))
        words = torch.randint(-(2**62), 2**62, (-(-size // 8),), generator=self._torch, device=self.device)
        return words.view(torch.uint8)[:size].view(shape)

    def rows(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        wide = torch.randn(shape, generator=self._torch, device=self.device)
        if self.holes:  # very different magnitudes
            steps = torch.randint(-12, 8, (shape[0], 1), generator=self._torch, device=self.device)
            wide *= torch.exp2(steps.float())
        return wide.to(dtype)

    def out(self, *shape: int, dtype: torch.dtype = torch.uint8) -> Guarded:
        return Guarded(shape, dtype, self.device)

    def own_slots(self, rows: int) -> tuple[torch.Tensor, int]:
        """Slots of a chunk in whole pages of rank 1 (of others too, with holes), and pages of a pool."""
        need = -(-rows // PAGE_SIZE)
        pool = need + 9
        if self.holes:
            logical = self.rng.permutation(np.arange(RANKS, RANKS * pool))[:need]
        else:
            logical = self.rng.permutation(np.arange(1, pool))[:need] * RANKS + 1
        slots = (logical[:, None] * PAGE_SIZE + np.arange(PAGE_SIZE)).reshape(-1)[:rows]
        return self.ids(slots, torch.int64), pool

    def packed(self, rows: int) -> torch.Tensor:
        one = store_mla.packed_rows(self.rows(min(rows, 4096), 512), self.rows(min(rows, 4096), 64))
        return one.repeat(-(-rows // one.shape[0]), 1)[:rows].contiguous()

    def peers(self, rows: int, page_bytes: int, packed: bool = False) -> tuple[Any, ...]:
        """spanning, stride, owner, physical, place, dense pages: a sequence over all ranks' pools."""
        need = -(-rows // PAGE_SIZE)
        per_rank = -(-need // RANKS) + 1
        stride = (per_rank + 1) * page_bytes
        size = (RANKS - 1) * stride + per_rank * page_bytes
        data = self.packed(size // 656).view(-1) if packed else self.bytes(size)
        index = np.arange(need)
        owner, physical = index % RANKS, 1 + index // RANKS
        if self.holes:
            owner, physical = self.rng.integers(0, RANKS, need), self.rng.integers(0, per_rank, need)
        place = self.ids(self.rng.permutation(need) if self.holes else index)
        return data, stride, self.plain(owner), self.plain(physical), place, need
