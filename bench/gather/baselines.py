"""How a dense view can be built by collectives alone: what the product's paths are measured against.

Each takes the pages that a rank owns out of its pool and leaves all ranks' pages in `out`. Bytes travel as
they are; where a collective reduces, it sums int32 views with one contributor each, never floats.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist


def all_reduce(
    pool: torch.Tensor, own: torch.Tensor, place: torch.Tensor, out: torch.Tensor
) -> Callable[[], None]:
    """Zero the view, scatter the own pages into it, sum over the ranks.

    pool: uint8 [physical pages, page bytes]. own, place: int64 [n], own pages and their dense pages.
    out: uint8 [dense pages, page bytes].
    """
    words = out.view(torch.int32)

    def run() -> None:
        out.zero_()
        out.index_copy_(0, place, pool.index_select(0, own))
        dist.all_reduce(words)

    return run


def all_gather(
    pool: torch.Tensor, own: torch.Tensor, out: torch.Tensor, *, reorder: bool, stage: bool
) -> Callable[[], None]:
    """All-gather of equal blocks. stage: pack the own pages in each run (else once). reorder: dense page
    `k * ranks + r` is page k of rank r's block (else the view is left in blocks: not a dense view).

    out: uint8 [ranks * len(own), page bytes].
    """
    ranks = dist.get_world_size()
    packed = pool.index_select(0, own)
    received = torch.empty_like(out)
    turned = received.view(ranks, len(own), -1).transpose(0, 1)

    def run() -> None:
        block = pool.index_select(0, own) if stage else packed
        dist.all_gather_into_tensor(received, block)
        if reorder:
            out.view(len(own), ranks, -1).copy_(turned)

    return run
