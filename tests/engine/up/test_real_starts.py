"""Two real starts that are ended while engines load: nothing is left running, no port held.

(The stubs in tests/unit/stack go through every phase; here are the processes that SGLang really starts.)
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from plait.stack.ports import is_free

pytestmark = pytest.mark.stack

# prefill: keeper, launcher, 2 schedulers, detokenizer; decode: keeper, launcher, scheduler; router: 2.
ENOUGH = 8
START_S = 180.0


def _below(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _ports(processes: list[psutil.Process]) -> set[int]:
    """Ports on the command lines, and those already listened on."""
    found: set[int] = set()
    for process in processes:
        try:
            words = process.cmdline()
            found |= {int(words[i + 1]) for i, word in enumerate(words[:-1]) if word.endswith("port")}
            found |= {c.laddr.port for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
        except (psutil.NoSuchProcess, psutil.AccessDenied, ValueError):
            continue
    return found


@pytest.mark.parametrize(
    ("signum", "status"), [(signal.SIGINT, 128 + signal.SIGINT), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_start_that_is_ended_leaves_nothing(model: Path, tmp_path: Path, signum: int, status: int) -> None:
    state = tmp_path / "state.json"
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "plait.cli", "up", "--model", str(model), "--state", str(state)],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=tmp_path,
            start_new_session=True,
        )
    seen: dict[int, psutil.Process] = {}
    try:
        deadline = time.monotonic() + START_S
        while len(seen) < ENOUGH:
            assert process.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline, f"only {len(seen)} processes in {START_S:.0f} s"
            seen |= {each.pid: each for each in _below(process)}
            time.sleep(0.1)
        # All have begun, and load: from here to a stack that is up it can be three seconds.
        time.sleep(0.3)
        seen |= {each.pid: each for each in _below(process)}
        ports = _ports(list(seen.values()))
        assert not state.exists(), "it was up already: this is about the start"
        os.kill(process.pid, signum)
        assert process.wait(timeout=60) == status
        gone, alive = psutil.wait_procs(list(seen.values()), timeout=20)
        assert alive == []
        assert len(gone) >= ENOUGH
        assert ports
        assert [port for port in ports if not is_free(port, host="127.0.0.1")] == []
        assert not state.exists()
    finally:
        for each in [process, *seen.values()]:
            try:
                each.kill()
            except (psutil.NoSuchProcess, ProcessLookupError):
                continue
        process.wait()
