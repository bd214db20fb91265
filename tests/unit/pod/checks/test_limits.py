"""Shared memory and pinned memory."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from plait.pod.checks.limits import ipc_lock, judge_memlock, judge_shm


@pytest.mark.parametrize(
    ("least", "ok", "skipped"), [(0, True, True), (1, True, False), (1 << 62, False, False)]
)
def test_size_of_shm(tmp_path: Path, least: int, ok: bool, skipped: bool) -> None:
    result = judge_shm(tmp_path, least=least)
    assert (result.ok, result.skipped) == (ok, skipped)
    assert ok or "emptyDir" in result.fix


def test_no_shm_at_all(tmp_path: Path) -> None:
    result = judge_shm(tmp_path / "none", least=1)
    assert not result.ok
    assert "No such file" in result.reason


@pytest.mark.parametrize(
    ("limit", "capable", "rdma", "ok"),
    [
        (65536, False, False, True),
        (65536, False, True, False),
        (65536, True, True, True),
        (resource.RLIM_INFINITY, False, True, True),
    ],
)
def test_pinning(limit: int, capable: bool, rdma: bool, ok: bool) -> None:
    result = judge_memlock(limit, capable=capable, rdma=rdma)
    assert result.ok is ok
    assert result.skipped is not rdma
    assert ok or "IPC_LOCK" in result.fix


@pytest.mark.parametrize(
    ("line", "has"),
    [
        ("CapEff:\t0000000000004000", True),
        ("CapEff:\t0000000000003fff", False),
        ("CapPrm:\t0000000000004000", False),
    ],
)
def test_the_capability(tmp_path: Path, line: str, has: bool) -> None:
    (tmp_path / "status").write_text(f"Name:\tx\n{line}\n")
    assert ipc_lock(tmp_path / "status") is has
