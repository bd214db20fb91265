"""The cases of tests/gpu/gather_on_gpus.py between real processes, over host memory that they share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.gpu.gather_cases import INDEX, MLA_FP8, PATHS, Group, Place, run_cases
from tests.unit.gather.batches import MLA_KINDS
from tests.unit.gather.rank_process import run_ranks, stop_server

STRIPES, CASES = 8, 40


@pytest.fixture(scope="module", autouse=True)
def server_of_ranks() -> Iterator[None]:
    yield
    stop_server()


def cases(rank: int, ranks: int, *, peers: str, broken: str) -> dict[str, Any]:
    place = Place(rank, ranks, torch.device("cpu"), Path(peers))
    group = Group(place, stripes=STRIPES, kinds=(MLA_FP8, MLA_KINDS[1], INDEX), broken=broken)
    told = run_cases(group, cases=CASES, seed=ranks, slow=True)
    group.close()
    return told


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_path_gives_every_rank_the_owners_bytes(ranks: int, tmp_path: Path) -> None:
    outcomes = run_ranks(cases, ranks=ranks, folder=tmp_path, peers=str(tmp_path / "peers"), broken="")
    for told in outcomes:
        assert told["cases"] == CASES
        assert all(told["paths"][path] for path in PATHS), "some path was never taken"


def test_without_barriers_wrong_bytes_are_seen(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="wrong bytes"):
        run_ranks(cases, ranks=2, folder=tmp_path, peers=str(tmp_path / "peers"), broken="no-barrier")
