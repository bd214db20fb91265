"""The figures of one model on one kind of GPU: rows of groups, ways of gathering and dense budgets. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from plait.contract.capacity import GatherBy, capacity_ratio, set_aside, stock_tokens
from plait.contract.families import FAMILIES
from plait.contract.gpu_memory import GPU_MEMORY, engine_bytes, prefill_reserve
from plait.contract.layouts import PAGE_SIZE, KvDtype
from plait.contract.weights import bytes_per_rank

MODEL, GPU, CHUNK = "glm-5-fp8", "NVIDIA-H200", 8192
RANKS = (8, 4)
DENSE = (128 * 1024, 200 * 1024)
"""Tokens of one dense slot."""
BOUND = 0.95
"""Least ratio, with a dense budget of DENSE[0]."""


class Memory(NamedTuple):
    """Of one GPU of a group of `ranks`, in bytes. kv: what the engine's default leaves beside weights and
    reserve for pools and scratch; not above 0 where the weights alone are too much.
    """

    ranks: int
    weights: int
    reserve: int
    kv: int

    @property
    def fits(self) -> bool:
        """Whether the model's weights leave room for a cache."""
        return self.kv > 0


class Row(NamedTuple):
    """One figure. `kv_bytes` are the same for both: of a shared group's rank, and of a stock one.

    kv_bytes_from: the group whose GPUs leave so much. aside_bytes: scratch, exchange and rounding, taken out
    of them. least_kv_bytes: from so many on the ratio is at least `BOUND`.
    """

    ranks: int
    gather: str
    dense_tokens: int
    kv_bytes: int
    kv_bytes_from: int
    aside_bytes: int
    shared_tokens: int
    stock_tokens: int
    ratio: float
    least_kv_bytes: int


class Size(NamedTuple):
    """Layers of a model, and bytes of a token's MLA and index rows in one of them."""

    layers: int
    row: int

    @property
    def page(self) -> int:
        """Bytes of one page, of all layers."""
        return PAGE_SIZE * self.row * self.layers


def size() -> Size:
    """Of the model, stored as FP8."""
    shape = FAMILIES[MODEL]
    return Size(shape.num_hidden_layers, shape.rows(KvDtype.FP8_E4M3).total)


def memory(ranks: int) -> Memory:
    """What the weights leave of a GPU."""
    weights = bytes_per_rank(FAMILIES[MODEL], ranks=ranks)
    if weights is None:
        raise ValueError(f"{MODEL}: the weights cannot be told from the shape")
    reserve = prefill_reserve(chunk=CHUNK, ranks=ranks)
    return Memory(ranks, weights, reserve, engine_bytes(GPU_MEMORY[GPU], reserve=reserve) - weights)


def rows(ranks: Sequence[int] = RANKS) -> list[Row]:
    """All figures. A group whose GPUs cannot hold the weights is reckoned with what the first one leaves."""
    first = memory(ranks[0])
    told = []
    for each in map(memory, ranks):
        used = each if each.fits else first
        told += [
            _row(each.ranks, kv=used.kv, of=used.ranks, dense=dense, by=by)
            for dense in DENSE
            for by in GatherBy
        ]
    return told


def headline(told: Sequence[Row]) -> float:
    """The least ratio with the first dense budget, whatever the group and the way of gathering."""
    return min(row.ratio for row in told if row.dense_tokens == DENSE[0])


def _row(ranks: int, *, kv: int, of: int, dense: int, by: GatherBy) -> Row:
    layers, row = size()
    stock = stock_tokens(kv, layers=layers, row=row)
    ratio = capacity_ratio(kv, ranks=ranks, layers=layers, row=row, scratch_tokens=dense, by=by)
    return Row(
        ranks=ranks,
        gather=by.value,
        dense_tokens=dense,
        kv_bytes=kv,
        kv_bytes_from=of,
        aside_bytes=set_aside(dense, row=row, layers=layers, ranks=ranks, by=by).total,
        shared_tokens=round(ratio * ranks * stock),
        stock_tokens=stock,
        ratio=round(ratio, 4),
        least_kv_bytes=_least(ranks, dense=dense, by=by),
    )


def _least(ranks: int, *, dense: int, by: GatherBy) -> int:
    """Fewest bytes from which on `BOUND` is kept.

    Within a page the ratio is least where the page begins, and over pages it only grows: bisect pages.
    """
    layers, row = size()
    page = size().page

    def kept(pages: int) -> bool:
        return (
            capacity_ratio(pages * page, ranks=ranks, layers=layers, row=row, scratch_tokens=dense, by=by)
            >= BOUND
        )

    low, high = 2, 4
    while not kept(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if kept(middle) else (middle, high)
    return high * page
