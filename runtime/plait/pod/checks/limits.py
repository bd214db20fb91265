"""Is there enough shared memory, and may memory be pinned for RDMA?"""

from __future__ import annotations

import os
import resource
from pathlib import Path

from plait.contract.verdict import CheckResult
from plait.pod.asked import Asked
from plait.pod.checks.result import bad, good, skipped

SHM, MEMLOCK = "shm", "memlock"
_IPC_LOCK = 14  # number of the capability CAP_IPC_LOCK


def check(asked: Asked) -> list[CheckResult]:
    """Two results."""
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return [
        judge_shm(asked.root / "dev/shm", least=asked.shm_bytes),
        judge_memlock(limit, capable=ipc_lock(asked.root / "proc/self/status"), rdma=asked.rdma),
    ]


def judge_shm(folder: Path, *, least: int) -> CheckResult:
    """The engine's processes exchange tensors through it; the default of 64 MiB ends them by a bus error."""
    if not least:
        return skipped(SHM, "no least size was given (--shm-bytes)")
    try:
        told = os.statvfs(folder)
    except OSError as error:
        return bad(
            SHM, "none", reason=f"{folder}: {error.strerror}", fix="mount an emptyDir of medium Memory there"
        )
    size = told.f_blocks * told.f_frsize
    if size >= least:
        return good(SHM, f"{size} bytes")
    reason = f"/dev/shm is smaller than {least} bytes"
    return bad(SHM, f"{size} bytes", reason=reason, fix="mount an emptyDir of medium Memory at /dev/shm")


def judge_memlock(limit: int, *, capable: bool, rdma: bool) -> CheckResult:
    """RDMA registers whole KV pools, which pins them."""
    unlimited = limit == resource.RLIM_INFINITY
    value = f"{'unlimited' if unlimited else f'{limit} bytes'}{', IPC_LOCK' if capable else ''}"
    if not rdma:
        return skipped(MEMLOCK, "transfers go over TCP", value=value)
    if unlimited or capable:
        return good(MEMLOCK, value)
    reason = "RDMA pins the KV pools, and this container may not pin so much"
    return bad(MEMLOCK, value, reason=reason, fix="add the capability IPC_LOCK to the engine's containers")


def ipc_lock(status: Path) -> bool:
    """Whether this process has CAP_IPC_LOCK in force."""
    for line in status.read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _IPC_LOCK & 1)
    return False
