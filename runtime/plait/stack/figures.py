"""Shared against replicated, in figures: what the running engines report, and what arithmetic says of the
layout that is not running."""

from __future__ import annotations

import json
from typing import NamedTuple

from pydantic import BaseModel

from plait.contract.capacity import physical_pages, pool_bytes
from plait.contract.layouts import PAGE_SIZE, Layout
from plait.contract.status import ByteCounts, CapacityStatus, PageCounts
from plait.stack.probe import ask


class FiguresError(Exception):
    """The router gave no figures, or figures that contradict each other."""


class _Prefetch(BaseModel):
    hit: int
    late: int
    fallback: int


class _RankCache(BaseModel):
    rank: int
    pages: PageCounts
    bytes: ByteCounts
    prefetch: _Prefetch


class _GroupCache(BaseModel):
    url: str
    side: str
    cp: int | None
    capacity: CapacityStatus | None
    ranks: list[_RankCache]


class _Cache(BaseModel):
    workers: list[_GroupCache]


class RankTransfer(BaseModel):
    """Pages that one rank sent to decode since it started."""

    rank: int
    pages: int
    bytes: int
    seconds: float
    failures: int


class _GroupTransfers(BaseModel):
    url: str
    side: str
    ranks: list[RankTransfer]


class _Transfers(BaseModel):
    workers: list[_GroupTransfers]


class Layouts(NamedTuple):
    """One figure for both layouts; `shared` is measured, `replicated` computed from the same pool."""

    shared: int
    replicated: int

    @property
    def ratio(self) -> float:
        """How much better shared is: what it saves of a cost, or has more of a capacity."""
        low, high = sorted(self)
        return high / low if low else 0.0


class Comparison(NamedTuple):
    """Of one prefill group. Bytes and pages are per rank.

    `bytes_for_pool`: pool tensors for the same tokens. `tokens`: held at the same bytes. `pages`: stored.
    `scratch_bytes`: the dense views, which both layouts have.
    """

    ranks: int
    bytes_for_pool: Layouts
    tokens: Layouts
    pages: Layouts
    scratch_bytes: int
    used_pages: list[int]
    prefetch_hits: int
    prefetch_late: int
    prefetch_fallbacks: int


def compare(body: bytes, *, layers: int) -> Comparison:
    """From `GET /api/v1/cache` of a router whose prefill group is shared; `layers` of the model.

    Raises FiguresError when the group is not there or reports nothing.
    """
    workers = _Cache.model_validate_json(body).workers
    group = next((each for each in workers if each.side == "prefill"), None)
    if group is None or group.capacity is None or group.cp is None or not group.ranks:
        raise FiguresError("no prefill group reports its cache yet")
    capacity, ranks = group.capacity, group.cp
    pages = capacity.tokens // PAGE_SIZE
    stored = physical_pages(pages, ranks=ranks, layout=Layout.SHARED)
    # All ranks allocate alike; the largest is shown, so that a fault would not flatter the figures.
    allocated = max(each.bytes.mla + each.bytes.index for each in group.ranks)
    row, rest = divmod(allocated, stored * PAGE_SIZE * layers)
    if rest or not row:
        raise FiguresError(f"{allocated} bytes are not {stored} pages of {layers} layers")
    everywhere = pool_bytes(pages, ranks=ranks, layers=layers, row=row, layout=Layout.REPLICATED)
    return Comparison(
        ranks=ranks,
        bytes_for_pool=Layouts(allocated, everywhere),
        tokens=Layouts(capacity.tokens, capacity.tokens_replicated),
        pages=Layouts(max(each.pages.owned for each in group.ranks), pages),
        scratch_bytes=max(each.bytes.scratch for each in group.ranks),
        used_pages=[each.pages.used for each in group.ranks],
        prefetch_hits=sum(each.prefetch.hit for each in group.ranks),
        prefetch_late=sum(each.prefetch.late for each in group.ranks),
        prefetch_fallbacks=sum(each.prefetch.fallback for each in group.ranks),
    )


def sent(body: bytes) -> list[RankTransfer]:
    """From `GET /api/v1/transfers`: what each prefill rank sent."""
    workers = _Transfers.model_validate_json(body).workers
    return [rank for each in workers if each.side == "prefill" for rank in each.ranks]


def read_figures(router_url: str, *, layers: int) -> tuple[Comparison, list[RankTransfer]]:
    """Both, asked of a running router."""
    bodies = []
    for path in ("/api/v1/cache", "/api/v1/transfers"):
        answer = ask(f"{router_url}{path}", timeout_s=10.0)
        if answer.status != 200:
            raise FiguresError(f"{path} answers {answer.status or 'nothing'}")
        bodies.append(answer.body)
    try:
        return compare(bodies[0], layers=layers), sent(bodies[1])
    except (ValueError, json.JSONDecodeError) as error:
        raise FiguresError(f"the router's figures cannot be read: {error}") from error
