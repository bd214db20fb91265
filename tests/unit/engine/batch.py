"""A batch as the engine's parts see it, and its truth told token by token."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

from plait.contract.layouts import PAGE_SIZE


class Token(NamedTuple):
    """One new token of a batch: who computes it, where it is written (logical slot), in which request."""

    owner: int
    slot: int
    request: int


class FakeBatch:
    """Requests of `extends` new tokens after cached `prefixes` (whole pages), over `pages` of each."""

    def __init__(self, prefixes: list[int], extends: list[int], pages: list[list[int]]) -> None:
        self.prefixes, self.extends, self.pages = prefixes, extends, pages
        self.lengths = [a + b for a, b in zip(prefixes, extends, strict=True)]
        self.tokens_in_all = sum(extends)

    def tokens(self, ranks: int) -> list[Token]:
        found = []
        for request, (prefix, length) in enumerate(zip(self.prefixes, self.lengths, strict=True)):
            for position in range(prefix, length):
                page = self.pages[request][position // PAGE_SIZE]
                found.append(Token(page % ranks, page * PAGE_SIZE + position % PAGE_SIZE, request))
        return found

    def table(self) -> torch.Tensor:
        """The engine's request table, int32 [requests + 1, longest], row 1 + i for request i; junk beyond."""
        wide = torch.full((len(self.pages) + 1, max(self.lengths) + 70), 12345, dtype=torch.int32)
        for row, (pages, length) in enumerate(zip(self.pages, self.lengths, strict=True)):
            for position in range(length):
                wide[row + 1, position] = pages[position // PAGE_SIZE] * PAGE_SIZE + position % PAGE_SIZE
        return wide

    def forward_batch(self) -> Any:
        return SimpleNamespace(
            forward_mode=SimpleNamespace(is_context_parallel_extend=lambda: True),
            extend_seq_lens_cpu=list(self.extends),
            extend_prefix_lens_cpu=list(self.prefixes),
            rids=[str(index) for index in range(len(self.pages))],
            seq_lens=torch.tensor(self.lengths),
            req_pool_indices=torch.arange(1, len(self.pages) + 1, dtype=torch.int32),
            out_cache_loc=torch.tensor([token.slot for token in self.tokens(1)]),
            attn_cp_metadata=None,
        )


def random_batch(rng: np.random.Generator, *, ranks: int) -> FakeBatch:
    """One to four requests over random owners; often some rank owns no page."""
    ids = rng.permutation(np.arange(ranks, ranks * 30))
    if rng.random() < 0.5:
        kept = rng.permutation(ranks)[: rng.integers(1, ranks + 1)]
        ids = ids[np.isin(ids % ranks, kept)]
    free = ids.tolist()
    prefixes, extends, pages = [], [], []
    for _ in range(int(rng.integers(1, 5))):
        extend = int(rng.choice([1, 2, 63, 64, 65, 130]))
        cached = int(rng.integers(0, 3))
        count = cached + -(-extend // PAGE_SIZE)
        if count > len(free):
            break
        prefixes.append(cached * PAGE_SIZE)
        extends.append(extend)
        pages.append([free.pop() for _ in range(count)])
    return FakeBatch(prefixes, extends, pages)
