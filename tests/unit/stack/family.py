"""Starts `stub_stack.py`, waits for what its processes note, and finds out who is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from plait.stack.ports import is_free

READY = ["--ranks", "2"]


def until(done: Callable[[], bool], what: str, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class Family:
    """A supervisor process over stub children."""

    def __init__(
        self, folder: Path, children: dict[str, list[str]], *, grace_s: float = 0.4, timeout_s: float = 60.0
    ) -> None:
        self.folder = folder
        script = str(Path(__file__).with_name("stub_stack.py"))
        self._output = (folder / "output").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, script, str(folder), str(grace_s), str(timeout_s), json.dumps(children)],
            stdout=self._output,
            stderr=(folder / "errors").open("w"),
            start_new_session=True,
        )

    def _noted(self, kind: str) -> list[int]:
        found = (self.folder / "pids").glob(f"{kind}-*")
        return [int(path.name.rpartition("-")[2]) for path in found]

    @property
    def children(self) -> list[int]:
        return self._noted("child")

    @property
    def hidden(self) -> list[int]:
        return self._noted("hidden")

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text()

    def keepers(self) -> list[psutil.Process]:
        below = psutil.Process(self.process.pid).children()
        return [process for process in below if "plait.stack.keeper" in process.cmdline()]

    def until_started(self, children: int, hidden: int = 0) -> None:
        until(lambda: len(self.children) >= children, f"{children} children")
        until(lambda: len(self.hidden) >= hidden, f"{hidden} hidden descendants")

    def until_up(self) -> None:
        until(lambda: "UP" in self.output, "UP")

    def end(self, timeout_s: float = 20.0) -> int:
        return self.process.wait(timeout_s)

    def assert_nothing_left(self, timeout_s: float = 5.0) -> None:
        """No process of the family lives, and none of its ports is held."""
        pids = self.children + self.hidden
        assert pids, "no process was ever seen: the test proved nothing"
        until(lambda: not any(alive(pid) for pid in pids), "all processes gone", timeout_s)
        ports = self._noted("port")
        assert ports
        assert [port for port in ports if not is_free(port, host="127.0.0.1")] == []

    def clean_up(self) -> None:
        """After a failed assertion the test itself must leave nothing."""
        for pid in [self.process.pid, *self.children, *self.hidden]:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self._output.close()
