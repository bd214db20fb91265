"""Cost tables: what they refuse, that they travel unchanged, and what they say of a run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch.distributed as dist
from tests.unit.gather.rank_process import run_ranks, stop_server

from plait.gather.costs import H200, MOST_RUNS, CostTable
from plait.gather.measure import agreed


def test_a_table_travels_unchanged() -> None:
    assert CostTable.from_json(H200.to_json()) == H200


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"copy_gbps": 0}, "CostTable.copy_gbps is 0: give a positive number"),
        ({"copy_gbps": float("nan")}, "copy_gbps is nan"),
        ({"barrier_us": -1.0}, "barrier_us is -1.0"),
        ({"pull_us": "1"}, "missing or unknown: .'pull_us'"),
        ({"pull_gbps": "fast"}, "pull_gbps is 'fast'"),
        ({"pull_gbps": True}, "pull_gbps is True"),
        ({"pull_share": 1.5}, "pull_share is 1.5: give a share from 0 to 1"),
    ],
)
def test_a_bad_number_is_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CostTable.from_json(json.dumps(dataclasses.asdict(H200) | change))


def test_a_missing_number_and_another_shape_are_named() -> None:
    told = dataclasses.asdict(H200)
    del told["direct_gbps"]
    with pytest.raises(ValueError, match=r"missing or unknown: \['direct_gbps'\]"):
        CostTable.from_json(json.dumps(told))
    with pytest.raises(ValueError, match="is a JSON object"):
        CostTable.from_json("[]")


def test_no_share_is_a_share() -> None:
    assert dataclasses.replace(H200, copy_share=0).copy_share == 0


def test_a_run_is_worth_a_copy_when_the_kernel_needs_longer_than_the_call() -> None:
    table = dataclasses.replace(H200, copy_call_us=2.0, pull_gbps=100.0)
    assert table.run_limits() == (200_000, MOST_RUNS)


def test_times_are_starts_and_bytes() -> None:
    table = dataclasses.replace(H200, copy_start_us=10.0, copy_call_us=2.0, copy_gbps=100.0)
    assert table.copy_us(2, runs=8, nbytes=1e6) == 2 * 10 + 8 * 2 + 10
    assert table.layer_us(0) == table.layer_start_us


def test_every_number_is_described_once() -> None:
    rows = H200.describe()
    assert {row.name: row.value for row in rows} == H200.numbers()
    assert all(row.means for row in rows)


def own_and_agreed(rank: int, ranks: int) -> tuple[CostTable, CostTable]:
    own = dataclasses.replace(H200, source=f"rank {rank}", copy_gbps=100.0 + rank)
    return own, agreed(own, dist.group.WORLD)


def test_all_ranks_take_the_table_of_rank_0(tmp_path: Path) -> None:
    try:
        outcomes = run_ranks(own_and_agreed, ranks=2, folder=tmp_path)
    finally:
        stop_server()
    first = outcomes[0][0]
    assert [taken for _, taken in outcomes] == [first, first]
    assert outcomes[1][0] != first
