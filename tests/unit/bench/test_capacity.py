"""Figures of capacity: the file is what the arithmetic says, and a measured start is held against it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench.capacity import __main__ as command
from bench.capacity import plan
from bench.capacity.measured import MismatchError, measured

from plait.contract.capacity import GatherBy, capacity_ratio, plan_memory
from plait.contract.families import FAMILIES
from plait.contract.layouts import KvDtype, Layout
from plait.contract.rows import RowBytes
from plait.contract.status import ByteCounts, CapacityStatus, EngineStatus, PeerCounts, RankStatus

RANKS, LAYERS, SLOT = 4, 6, 4096
FP8 = RowBytes(mla=656, index=132)
BUDGET = 300_000_000


def status(layout: Layout, *, by: GatherBy = GatherBy.PEER, **changes: Any) -> EngineStatus:
    """What an engine says whose tensors are those of the plan."""
    made = plan_memory(
        BUDGET,
        layout=layout,
        ranks=RANKS,
        layers=LAYERS,
        rows=FP8,
        context_length=1024,
        chunk=512,
        by=by,
        scratch_tokens=SLOT,
    )
    ranks = [
        RankStatus(
            rank=rank,
            pid=rank,
            updated_at=0,
            bytes=ByteCounts(mla=made.mla_bytes, index=made.index_bytes, scratch=made.aside.slots),
            peers=PeerCounts(state="mapped" if by is GatherBy.PEER else "refused"),
        )
        for rank in range(RANKS)
    ]
    told = {
        "role": "prefill",
        "layout": layout.value,
        "cp": RANKS,
        "wire_hash": "w",
        "capacity": CapacityStatus(tokens=made.tokens, scratch_tokens=SLOT),
        "ranks": ranks,
        **changes,
    }
    return EngineStatus.model_validate(told)


def test_the_file_is_what_the_arithmetic_says() -> None:
    told = json.loads(command.OUT.read_text())
    told.pop("measured", None)
    assert told == json.loads(json.dumps(command.report())), "run: python -m bench.capacity"


def test_the_bound_is_kept() -> None:
    rows = plan.rows()
    assert plan.headline(rows) >= plan.BOUND
    assert {(row.ranks, row.gather, row.dense_tokens) for row in rows} == {
        (ranks, by.value, dense) for ranks in (8, 4) for by in GatherBy for dense in (131072, 204800)
    }


def test_the_rows_are_of_glm_5() -> None:
    assert plan.size() == (78, 788)
    assert FAMILIES[plan.MODEL].rows(KvDtype.FP8_E4M3).mla == 656
    assert plan.memory(8).fits
    assert not plan.memory(4).fits
    assert {row.kv_bytes for row in plan.rows()} == {plan.memory(8).kv}


def test_from_the_least_memory_on_the_bound_is_kept() -> None:
    layers, row = plan.size()
    page = plan.size().page
    for each in plan.rows():

        def ratio(of: int, each: plan.Row = each) -> float:
            return capacity_ratio(
                of,
                ranks=each.ranks,
                layers=layers,
                row=row,
                scratch_tokens=each.dense_tokens,
                by=GatherBy(each.gather),
            )

        assert ratio(each.least_kv_bytes - page) < plan.BOUND
        assert all(ratio(each.least_kv_bytes + more * page // 3) >= plan.BOUND for more in range(300))


def test_a_measured_start_is_held_against_the_plan() -> None:
    told = measured(status(Layout.SHARED), status(Layout.REPLICATED))
    assert (told.ranks, told.layers, told.row_bytes, told.dense_tokens) == (RANKS, LAYERS, 788, SLOT)
    assert told.gather == "peer"
    # What the replicated one used is up to a stripe of RANKS pages less than what it had.
    assert 0 <= told.shared_tokens - told.planned_tokens <= RANKS * RANKS * 64
    assert told.ratio == round(told.shared_tokens / (RANKS * told.replicated_tokens), 4)
    assert 0.9 < told.ratio < 1


def test_collectives_are_told_from_peers() -> None:
    told = measured(status(Layout.SHARED, by=GatherBy.COLLECTIVE), status(Layout.REPLICATED))
    assert told.gather == "collective"
    assert 0 <= told.shared_tokens - told.planned_tokens <= RANKS * RANKS * 64


@pytest.mark.parametrize(
    ("shared", "replicated", "why"),
    [
        (status(Layout.REPLICATED), status(Layout.REPLICATED), "the layout is replicated"),
        (status(Layout.SHARED), status(Layout.SHARED), "the layout is shared"),
        (status(Layout.SHARED), status(Layout.REPLICATED, wire_hash="x"), "the same model"),
        (status(Layout.SHARED, ranks=[]), status(Layout.REPLICATED), "0 of 4 ranks"),
    ],
)
def test_two_states_that_are_no_pair_are_refused(
    shared: EngineStatus, replicated: EngineStatus, why: str
) -> None:
    with pytest.raises(MismatchError, match=why):
        measured(shared, replicated)


@pytest.mark.parametrize("field", ["mla", "scratch"])
def test_tensors_that_are_not_those_of_the_plan_are_refused(field: str) -> None:
    shared = status(Layout.SHARED)
    for rank in shared.ranks:
        setattr(rank.bytes, field, getattr(rank.bytes, field) + 64)
    with pytest.raises(MismatchError, match="no whole"):
        measured(shared, status(Layout.REPLICATED))
    shared = status(Layout.SHARED)
    shared.ranks[1].bytes.mla += 1
    with pytest.raises(MismatchError, match="different bytes"):
        measured(shared, status(Layout.REPLICATED))


def test_the_command_keeps_a_measured_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, files = tmp_path / "capacity.json", {}
    for layout in (Layout.SHARED, Layout.REPLICATED):
        files[layout] = tmp_path / f"{layout}.json"
        files[layout].write_text(status(layout).model_dump_json())
    pair = ["--shared", str(files[Layout.SHARED]), "--replicated", str(files[Layout.REPLICATED])]
    assert command.main(["--out", str(out)]) == 0
    assert "measured" not in json.loads(out.read_text())
    assert command.main(["--out", str(out), *pair, "--machine", "two of them"]) == 0
    first = json.loads(out.read_text())
    assert first["measured"]["machine"] == "two of them"
    assert command.main(["--out", str(out)]) == 0
    assert json.loads(out.read_text()) == first
    assert "capacity_ratio 0.98" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        command.main(["--out", str(out), *pair[:2]])


def test_a_missed_bound_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "BOUND", 0.99)
    assert command.main(["--out", str(tmp_path / "capacity.json")]) == 1
