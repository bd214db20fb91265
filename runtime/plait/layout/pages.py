"""Logical pages and slots <-> (owner rank, physical page): pure arithmetic, nothing stored.

With N ranks, logical page l is owned by rank `l mod N` and is physical page `l div N` of that rank's pool.
Stripe 0 (logical pages 0..N-1, physical page 0 of every rank) is reserved: slot 0 is the engine's dummy
slot, and on the other ranks physical page 0 would otherwise be a live page that dummy writes overwrite.

The functions take Python ints, numpy integer arrays and torch integer tensors alike (only `//`, `%`, `*`
and `+` are used), of any shape, and return the same kind and shape; they check nothing, for they run on
every forward. Ids that come from outside are checked by `Geometry.check`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from plait.contract.layouts import PAGE_SIZE

Int64Array = npt.NDArray[np.int64]

# An int, a numpy integer array or a torch integer tensor (torch cannot be named here: no import of it).
Ints = TypeVar("Ints")


def _arithmetic(value: Ints) -> Any:
    return value


def owner(page: Ints, ranks: int) -> Ints:
    """Rank that stores logical `page`."""
    result: Ints = _arithmetic(page) % ranks
    return result


def physical(page: Ints, ranks: int) -> Ints:
    """Physical page of logical `page` in its owner's pool."""
    result: Ints = _arithmetic(page) // ranks
    return result


def logical(owner: Ints, physical: Ints, ranks: int) -> Ints:
    """Logical page of physical page `physical` of rank `owner`: the inverse of `owner` and `physical`."""
    result: Ints = _arithmetic(physical) * ranks + owner
    return result


def slot_owner(slot: Ints, ranks: int) -> Ints:
    """Rank that stores the token in logical `slot`."""
    result: Ints = _arithmetic(slot) // PAGE_SIZE % ranks
    return result


def slot_physical(slot: Ints, ranks: int) -> Ints:
    """Row of logical `slot` in its owner's pool, in tokens."""
    value = _arithmetic(slot)
    result: Ints = value // (PAGE_SIZE * ranks) * PAGE_SIZE + value % PAGE_SIZE
    return result


def slot_logical(owner: Ints, row: Ints, ranks: int) -> Ints:
    """Logical slot of pool row `row` of rank `owner`: the inverse of `slot_owner` and `slot_physical`."""
    value = _arithmetic(row)
    result: Ints = (value // PAGE_SIZE * ranks + owner) * PAGE_SIZE + value % PAGE_SIZE
    return result


def listed(pages: Int64Array, limit: int = 8) -> str:
    """The first `limit` ids of `pages` in words, for error messages."""
    shown = ", ".join(str(int(page)) for page in pages[:limit])
    return shown if len(pages) <= limit else f"{shown}, ... ({len(pages)} in all)"


@dataclass(frozen=True)
class Geometry:
    """Size of one CP group's shared pool.

    ranks: N, ranks of the group, at least 1.
    pages: usable logical pages over all ranks (the reserved stripe is not counted), a multiple of N.

    Raises ValueError, naming field, value and fix, if it is none such.
    """

    ranks: int
    pages: int

    def __post_init__(self) -> None:
        for name, value in (("ranks", self.ranks), ("pages", self.pages)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise ValueError(f"Geometry.{name} is {value!r}: it must be an int")
        if self.ranks < 1:
            raise ValueError(f"Geometry.ranks is {self.ranks}: give the CP group's size, at least 1")
        if self.pages < self.ranks or self.pages % self.ranks:
            fix = max(self.pages // self.ranks, 1) * self.ranks
            raise ValueError(
                f"Geometry.pages is {self.pages}: with {self.ranks} ranks it must be a positive multiple of "
                f"{self.ranks}; give {fix}"
            )

    @property
    def first_page(self) -> int:
        """Lowest usable logical page id: N."""
        return self.ranks

    @property
    def end_page(self) -> int:
        """One past the highest logical page id: pages + N."""
        return self.pages + self.ranks

    @property
    def pages_per_rank(self) -> int:
        """Usable pages that each rank stores."""
        return self.pages // self.ranks

    @property
    def physical_pages(self) -> int:
        """Physical pages of each rank's pool, the reserved one included."""
        return self.pages // self.ranks + 1

    @property
    def tokens(self) -> int:
        """Tokens the group can hold."""
        return self.pages * PAGE_SIZE

    def check(self, pages: npt.ArrayLike, *, field: str) -> Int64Array:
        """`pages` as a 1-D np.int64 array; ValueError naming `field` and the pages if any is not usable."""
        ids = np.asarray(pages)
        if ids.ndim != 1:
            raise ValueError(f"{field} has shape {ids.shape}: give a 1-D array of logical page ids")
        if ids.size == 0:
            return np.empty(0, dtype=np.int64)
        if ids.dtype.kind not in "iu":
            raise ValueError(f"{field} has dtype {ids.dtype}: give integer logical page ids")
        ids = ids.astype(np.int64, copy=False)
        if int(ids.min()) >= self.first_page and int(ids.max()) < self.end_page:
            return ids
        reserved = ids[(ids >= 0) & (ids < self.first_page)]
        if reserved.size:
            raise ValueError(
                f"{field} holds reserved pages {listed(reserved)}: stripe 0 (pages 0..{self.ranks - 1}) "
                f"is the dummy slot's and belongs to no request"
            )
        outside = ids[(ids < 0) | (ids >= self.end_page)]
        raise ValueError(
            f"{field} holds pages {listed(outside)} that are out of range: usable ids run from "
            f"{self.first_page} to {self.end_page - 1} (slots must be divided by {PAGE_SIZE} first)"
        )
