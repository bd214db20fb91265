"""Counting GPUs and their peers; torch is a stand-in, the process is real."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from plait.pod.asked import Asked
from plait.pod.checks.gpus import Gpus, check, judge_count, judge_peers
from plait.pod.deadline import Deadline

TORCH = """
class cuda:
    device_count = staticmethod(lambda: {count})
    get_device_name = staticmethod(lambda i: "H200")
    can_device_access_peer = staticmethod(lambda a, b: {peer})
"""


def ask(
    asked: Callable[..., Asked], tmp_path: Path, torch: str, *, seconds: float = 60, **changes: object
) -> Asked:
    (tmp_path / "torch.py").write_text(torch)
    env = {"PYTHONPATH": str(tmp_path)}
    return asked(flags=(), env=env, deadline=Deadline(seconds), **changes)


def test_on_the_cpu_nobody_is_asked(asked: Callable[..., Asked], tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit(1)")
    results = check(asked(env={"PYTHONPATH": str(tmp_path)}))
    assert [(r.name, r.ok, r.skipped) for r in results] == [("gpus", True, True), ("peers", True, True)]


def test_all_are_there(asked: Callable[..., Asked], tmp_path: Path) -> None:
    question = ask(asked, tmp_path, TORCH.format(count=4, peer="True"), gpus=4, peer_access="required")
    count, peers = check(question)
    assert (count.ok, count.value) == (True, "4 (H200)")
    assert (peers.ok, peers.skipped, peers.value) == (True, False, "12 of 12 pairs")


@pytest.mark.parametrize(("access", "ok", "skipped"), [("required", False, False), ("auto", True, True)])
def test_pairs_that_are_apart(
    asked: Callable[..., Asked], tmp_path: Path, access: str, ok: bool, skipped: bool
) -> None:
    torch = TORCH.format(count=4, peer="(a < 2) == (b < 2)")
    _, peers = check(ask(asked, tmp_path, torch, gpus=4, peer_access=access))
    assert (peers.ok, peers.skipped, peers.value) == (ok, skipped, "4 of 12 pairs")
    assert "0->2" in peers.reason


@pytest.mark.parametrize(
    ("torch", "says"),
    [
        ("raise RuntimeError('driver too old')", "driver too old"),
        ("import sys; sys.exit(3)", "did not answer in time"),
        ("import time; time.sleep(60)", "did not answer in time"),
    ],
)
def test_a_driver_that_does_not_answer(
    asked: Callable[..., Asked], tmp_path: Path, torch: str, says: str
) -> None:
    count, peers = check(ask(asked, tmp_path, torch, seconds=1.5, gpus=1))
    assert not count.ok
    assert says in count.reason
    assert peers.skipped


@pytest.mark.parametrize(("found", "ok"), [(8, True), (7, False), (9, False), (0, False)])
def test_exactly_as_many_as_ranks(found: int, ok: bool) -> None:
    assert judge_count(Gpus(found, ["H200"] * found, []), wanted=8).ok is ok


@pytest.mark.parametrize(
    ("gpus", "access"),
    [(Gpus(8, [], [[0, 1]]), "off"), (Gpus(1, [], []), "required"), (Gpus(0, [], []), "auto")],
)
def test_where_peers_do_not_matter(gpus: Gpus, access: str) -> None:
    result = judge_peers(gpus, access=access)
    assert (result.ok, result.skipped) == (True, True)
