"""Random batches and pools, equal on every rank that asks with the same seed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from plait.contract.layouts import PAGE_SIZE
from plait.gather import GatherRequest
from plait.layout import owner, physical

LAYERS = 3
TRASH = 0xA5
"""Byte that fills pages which no plan should read or place: reserved pages, and stale chunk pages."""


class PageKind(NamedTuple):
    """Shape and dtype of one page of a pool, as the engine allocates them."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize


MLA_KINDS = (
    PageKind("mla fp8 packed, 656 bytes a token", (PAGE_SIZE, 1, 656), torch.float8_e4m3fn),
    PageKind("mla bf16", (PAGE_SIZE, 1, 48), torch.bfloat16),
    PageKind("mla fp32", (PAGE_SIZE, 1, 24), torch.float32),
)
INDEX = PageKind("index", (1, PAGE_SIZE * 132), torch.uint8)


class Batch(NamedTuple):
    """A batch, and the pages that it may not touch before a layer's chunk is written."""

    requests: list[GatherRequest]

    @property
    def new_pages(self) -> list[int]:
        """Logical pages of all chunks."""
        return [int(p) for one in self.requests for p in one.pages[one.prefix // PAGE_SIZE :]]


def random_batch(rng: np.random.Generator, *, ranks: int, stripes: int) -> Batch:
    """Up to four requests over random owners; sometimes whole ranks own nothing, sometimes prefixes are
    shared, sometimes there is one token only."""
    ids = rng.permutation(np.arange(ranks, ranks * (stripes + 1)))
    if rng.random() < 0.4:
        kept = rng.permutation(ranks)[: rng.integers(1, ranks + 1)]
        ids = ids[np.isin(ids % ranks, kept)]
    free = ids.tolist()
    requests: list[GatherRequest] = []
    for _ in range(int(rng.integers(1, 5))):
        extend = int(rng.choice([1, 2, 63, 64, 65, 127, 128, 190]))
        shared: list[int] = []
        if requests and rng.random() < 0.5:
            first = requests[0]
            shared = first.pages[: int(rng.integers(0, first.prefix // PAGE_SIZE + 1))].tolist()
        cached = int(rng.integers(0, 3))
        new = -(-extend // PAGE_SIZE)
        if cached + new > len(free):
            break
        own = [free.pop() for _ in range(cached + new)]
        pages = np.array(shared + own, dtype=np.int64)
        requests.append(GatherRequest((len(pages) - new) * PAGE_SIZE, extend, pages))
    return Batch(requests or [GatherRequest(0, 1, np.array([free[0]], dtype=np.int64))])


def mixed_batch(rng: np.random.Generator, *, ranks: int, stripes: int) -> Batch:
    """A random batch of few stripes, or one long sequence, up to the whole pool: as a fresh pool hands it
    out, with holes of others' pages, or with all pages on one rank."""
    if rng.random() < 0.4:
        return random_batch(rng, ranks=ranks, stripes=min(stripes, 6))
    count = int(rng.integers(1, ranks * stripes + 1))
    first = ranks + int(rng.integers(0, ranks * stripes - count + 1))
    pages = np.arange(first, first + count, dtype=np.int64)
    if rng.random() < 0.3:
        pages = pages[rng.random(count) < 0.9]
    if not len(pages):
        pages = np.array([ranks], dtype=np.int64)
    if rng.random() < 0.2:
        pages = pages[pages % ranks == pages[0] % ranks]
    new = int(rng.integers(1, len(pages) + 1))
    tokens = (new - 1) * PAGE_SIZE + int(rng.integers(1, PAGE_SIZE + 1))
    return Batch([GatherRequest((len(pages) - new) * PAGE_SIZE, tokens, pages)])


def random_pools(
    rng: np.random.Generator, kind: PageKind, *, ranks: int, stripes: int
) -> list[list[torch.Tensor]]:
    """[layer][rank]: final pool bytes uint8 [physical pages, page bytes], as after the layer's writes."""
    size = (stripes + 1) * kind.nbytes
    return [
        [
            torch.frombuffer(bytearray(rng.bytes(size)), dtype=torch.uint8).view(stripes + 1, -1)
            for _ in range(ranks)
        ]
        for _ in range(LAYERS)
    ]


def before_writes(final: torch.Tensor, batch: Batch, *, rank: int, ranks: int) -> torch.Tensor:
    """`rank`'s pool before the chunk of its layer was written: its new pages and page 0 hold `TRASH`."""
    pool = final.clone()
    pool[0] = TRASH
    pool[own_new_pages(batch, rank=rank, ranks=ranks)] = TRASH
    return pool


def own_new_pages(batch: Batch, *, rank: int, ranks: int) -> torch.Tensor:
    """Physical pages of the chunk that `rank` owns, int64 [n]."""
    new = np.array(batch.new_pages, dtype=np.int64)
    return torch.from_numpy(physical(new[owner(new, ranks) == rank], ranks))
