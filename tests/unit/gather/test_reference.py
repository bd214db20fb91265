"""The plain dense view, on a batch small enough to say by hand."""

from __future__ import annotations

import numpy as np
import torch

from plait.gather import GatherRequest
from plait.gather.reference import dense_reference


def test_pages_stand_in_sequence_order_request_after_request() -> None:
    # pools[rank][physical page] holds the byte 10 * rank + physical page.
    pools = [torch.arange(4, dtype=torch.uint8)[:, None] + 10 * rank for rank in range(3)]
    requests = [
        GatherRequest(64, 65, np.array([9, 3, 5])),  # rank 0 page 3, rank 0 page 1, rank 2 page 1
        GatherRequest(0, 1, np.array([10])),  # rank 1 page 3
    ]
    assert dense_reference(pools, requests).flatten().tolist() == [3, 1, 21, 13]
