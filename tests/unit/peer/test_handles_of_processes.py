"""The meeting of ranks when one of them is killed in it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from tests.unit.peer.ranks import group

from plait.peer.handles import meet
from plait.peer.terms import Member, Offer


def die_between(rank: int, ranks: int, folder: Path, dying: int) -> None:
    with meet(folder, me=Member("test", rank, ranks), timeout_s=60) as meeting:
        meeting.exchange(Offer("digest", {}, ()))
        if rank == dying:
            os.kill(os.getpid(), 9)
        meeting.commit()


@pytest.mark.parametrize("dying", [0, 1])
def test_a_rank_that_is_killed_between_the_phases(dying: int) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="plait-") as made,
        group(die_between, ranks=3, folder=Path(made) / "peers", dying=dying) as running,
    ):
        # Long before the timeouts of 60 s.
        told = [running.hear(rank, within_s=40) for rank in range(3) if rank != dying]
    assert [one.error for one in told] == ["PeersCannotMapError"] * 2, told
    assert all(f"rank {dying}" in one.text for one in told)
