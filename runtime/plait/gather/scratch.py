"""The dense scratch: two slots per kind, so that the next layer's prefix lands beside the one being read."""

from __future__ import annotations

from typing import NamedTuple

import torch

from plait.gather.pages import page_rows

SLOTS = 2
POISON = 0xFF
"""Byte that fills scratch before use under debug checks: NaN as FP8 E4M3, bf16 and fp32."""


class ScratchShape(NamedTuple):
    """Dense pages that fit (`pages`), and the shape and dtype of one page of a kind."""

    pages: int
    page_shape: tuple[int, ...]
    dtype: torch.dtype


class Scratch:
    """Two dense slots of one kind (MLA rows or index pages); one trash page beyond the budget.

    `tensor(slot)` is what attention reads, [ (pages + 1) * first dim of a page, ... ].
    """

    def __init__(self, shape: ScratchShape, *, device: torch.device) -> None:
        rows, *rest = shape.page_shape
        self.pages = shape.pages
        self.trash = shape.pages
        # Zeroed once: a page's tail beyond the last token is read by no one, but must not be NaN garbage
        # to kernels that load whole pages and mask afterwards.
        self._slots = [
            torch.zeros(((shape.pages + 1) * rows, *rest), dtype=shape.dtype, device=device)
            for _ in range(SLOTS)
        ]
        self._rows = [page_rows(slot, shape.pages + 1) for slot in self._slots]

    def tensor(self, slot: int) -> torch.Tensor:
        """The dense tensor of `slot`."""
        return self._slots[slot]

    def rows(self, slot: int) -> torch.Tensor:
        """The same memory as uint8 [pages + 1, page bytes]."""
        return self._rows[slot]

    def poison(self) -> None:
        """Fill both slots with `POISON` bytes, so that a page that was never fetched is seen (debug)."""
        for rows in self._rows:
            rows.fill_(POISON)

    @property
    def nbytes(self) -> int:
        """Bytes of both slots."""
        return sum(slot.nbytes for slot in self._slots)
