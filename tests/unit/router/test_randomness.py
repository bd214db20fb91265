"""Random bytes: each is handed out once, in no process twice."""

from __future__ import annotations

import os

import pytest

from plait.router.randomness import _PIECE, random_bytes


def test_bytes_are_as_many_as_asked_and_never_the_same() -> None:
    drawn = [random_bytes(16) for _ in range(3 * _PIECE // 16)]
    assert {len(each) for each in drawn} == {16}
    assert len(set(drawn)) == len(drawn)
    sizes = [1, 8, 16, 24, _PIECE]
    assert [len(random_bytes(size)) for size in sizes] == sizes


def test_all_values_come() -> None:
    assert set(b"".join(random_bytes(64) for _ in range(200))) == set(range(256))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forked_process_draws_its_own() -> None:
    """Else two processes of a router would use one bootstrap room."""
    random_bytes(16)
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(writing, random_bytes(32))
        os._exit(0)
    ours = random_bytes(32)
    os.waitpid(pid, 0)
    theirs = os.read(reading, 32)
    os.close(reading)
    os.close(writing)
    assert len(theirs) == 32
    assert theirs != ours
