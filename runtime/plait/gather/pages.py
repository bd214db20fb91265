"""Page rows of a pool tensor, as bytes: what every way of gathering moves (bytes, never sums)."""

from __future__ import annotations

import torch


def page_rows(buffer: torch.Tensor, pages: int) -> torch.Tensor:
    """`buffer` as uint8 [pages, page bytes], without a copy.

    Raises ValueError if the buffer is not contiguous or does not divide into `pages`.
    """
    if not buffer.is_contiguous():
        raise ValueError("a pool buffer must be contiguous to be moved by pages")
    flat = buffer.view(-1).view(torch.uint8)
    if flat.numel() % pages:
        raise ValueError(f"a buffer of {flat.numel()} bytes does not divide into {pages} pages")
    return flat.view(pages, -1)
