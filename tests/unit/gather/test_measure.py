"""What is measured at the start (the measuring itself needs GPUs: tests/gpu/gather_on_gpus.py)."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.gather.one_process import CountingBarrier
from tests.unit.gather.test_peer_exchange import small

from plait.contract.layouts import PAGE_SIZE
from plait.gather import GatherPlan, GatherRequest, Scratch, ScratchShape
from plait.gather.copy_engine import HostMover
from plait.gather.costs import H200
from plait.gather.measure import SMALL_PAGES, measure, probe
from plait.kernels.pull import pull_reference


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_broken_prefix_has_the_same_pages_in_runs_of_two(ranks: int) -> None:
    whole, broken = (probe(SMALL_PAGES, ranks=ranks, broken=broken) for broken in (False, True))
    assert np.array_equal(np.sort(broken), whole)
    lengths = []
    for pages in (whole, broken):
        request = GatherRequest((SMALL_PAGES - 1) * PAGE_SIZE, 1, pages)
        lengths.append(GatherPlan.from_requests([request], ranks=ranks, budget=SMALL_PAGES).undivided())
    assert lengths[0].chunk.runs.length.tolist() == [SMALL_PAGES // ranks] * ranks
    assert lengths[1].chunk.runs.length.tolist() == [2] * (SMALL_PAGES // 2)


def test_without_a_gpu_the_table_stays() -> None:
    kind, _, _ = small()
    spans = kind.spans[0]
    scratch = Scratch(ScratchShape(4, kind.page.shape, kind.page.dtype), device=spans.device)
    mover = HostMover(lanes=2, pull=pull_reference)
    barrier = CountingBarrier()
    given = measure(spans, scratch, mover=mover, barrier=barrier, table=H200)
    assert given is H200
    assert barrier.log == []
