"""The collectives that the gather is measured against must build the same view, or a ratio means nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from bench.gather.baselines import all_gather, all_reduce
from tests.unit.gather.rank_process import run_ranks, stop_server

PAGES, WIDTH = 8, 64


@pytest.fixture(scope="module", autouse=True)
def server_of_ranks() -> Iterator[None]:
    yield
    stop_server()


def wrong_bytes(rank: int, ranks: int) -> dict[str, int]:
    """Bytes that differ from the owners', by baseline. Pages in random order, and bytes of every value."""
    rng = np.random.default_rng(4)
    pools = [torch.from_numpy(rng.integers(0, 256, (PAGES, WIDTH), dtype=np.uint8)) for _ in range(ranks)]
    order = [torch.from_numpy(rng.permutation(PAGES)) for _ in range(ranks)]
    dense = torch.stack([pools[page % ranks][order[page % ranks][page // ranks]] for page in range(PAGES)])
    count = PAGES // ranks
    own, place = order[rank][:count], torch.arange(count) * ranks + rank
    found = {}
    for name in ("all_reduce", "staged", "packed once"):
        out = torch.full((PAGES, WIDTH), 0xFF, dtype=torch.uint8)
        if name == "all_reduce":
            run = all_reduce(pools[rank], own, place, out)
        else:
            run = all_gather(pools[rank], own, out, reorder=True, stage=name == "staged")
        for _ in range(2):
            run()
            found[name] = int((out != dense).sum())
    return found


def test_every_baseline_builds_the_dense_view(tmp_path: Path) -> None:
    for found in run_ranks(wrong_bytes, ranks=2, folder=tmp_path):
        assert found == {"all_reduce": 0, "staged": 0, "packed once": 0}
