"""A rank of a group that maps each other's memory is lost: the others name it and end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from harness import engines
from harness.engines import Engine

pytestmark = pytest.mark.stack

ENDS_WITHIN_S = 10.0


@pytest.fixture
def group(model: Path, tmp_path: Path) -> Iterator[Engine]:
    engine = engines.prefill("group", model=model, folder=tmp_path, layout="shared", cp=2, chunk=192)
    with engines.running(engine):
        yield engine


def test_a_lost_rank_is_named_and_the_others_end(group: Engine) -> None:
    """(That the server ends too is the engine's own: it waits a minute for core dumps before.)"""
    ranks = group.ranks()
    assert [rank["peers"]["state"] for rank in ranks] == ["mapped", "mapped"]
    left, lost = (psutil.Process(rank["pid"]) for rank in ranks)
    lost.kill()
    left.wait(timeout=ENDS_WITHIN_S)
    said = group.log.read_text(errors="replace")
    assert f"plait: rank 1 (pid {lost.pid}) has ended; this engine ends itself" in said
