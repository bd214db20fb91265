"""Attention that reads the other rank's rows where they are: equal to replicated, to the last bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import engines, suite
from harness.engines import Engine

pytestmark = pytest.mark.stack

PARTS = [suite.mixed_batches, suite.partial_pages, suite.whole_pages]


@pytest.fixture(scope="module")
def in_place(started, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = engines.prefill(
        "in-place",
        model=model,
        folder=tmp_path_factory.mktemp("in-place"),
        layout="shared",
        cp=2,
        chunk=started.groups.chunk,
        env={"PLAIT_SCRATCH_TOKENS": str(engines.CONTEXT), "PLAIT_GATHER_PATH": "peer-view"},
    )
    with engines.running(engine):
        yield engine


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_part(cp2, in_place: Engine, part) -> None:
    in_place.flush()
    part(cp2.groups._replace(shared=in_place))


def test_nothing_but_the_index_was_fetched(in_place: Engine) -> None:
    """The test above means something: no batch came another way."""
    for rank in in_place.ranks():
        assert rank["peers"]["state"] == "mapped"
        assert set(rank["gather"]["batches"]) == {"none", "peer-view"}
        assert rank["gather"]["batches"]["peer-view"] > 0
        assert rank["gather"]["hit"] == rank["gather"]["late"] == 0, "nothing is fetched ahead"
