"""The dense view in the plainest way: every page copied from its owner. What the rest must equal."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from plait.gather.plan import GatherRequest
from plait.layout import owner, physical


def dense_reference(pools: Sequence[torch.Tensor], requests: Sequence[GatherRequest]) -> torch.Tensor:
    """uint8 [dense pages, page bytes] of a batch, from all ranks' `pools` (uint8 [physical pages, bytes])."""
    ranks = len(pools)
    pages = [
        pools[int(owner(page, ranks))][int(physical(page, ranks))]
        for request in requests
        for page in request.pages.tolist()
    ]
    return torch.stack(pages)
