"""Components: long-running processes of a cluster, each with a pid file and a log."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.cluster.harness import cgroups, network
from tests.cluster.harness.failure import ClusterError, tail
from tests.cluster.harness.instance import Instance


class Components:
    """Starts and ends them by name: etcd, kube-apiserver, kubelet and so on.

    They join the cluster's cgroup and network namespace and a session of their own, so a Ctrl-C in the
    terminal does not reach them. Other processes than the one that started them may look and stop.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def start(
        self, name: str, command: Sequence[str], *, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start `command` (its first word is a path). Its log goes on where there is one already."""
        if self.alive(name):
            raise ClusterError(f"{name} runs already (pid {self.pid(name)})")
        self.instance.logs.mkdir(parents=True, exist_ok=True)
        self.instance.pids.mkdir(parents=True, exist_ok=True)
        join = 'echo $$ > "$0"; exec "$@"'
        words = [
            "sh",
            "-c",
            join,
            str(cgroups.entrance(self.instance.cgroup)),
            *network.inside(self.instance),
        ]
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                [*words, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        self._started[name] = process
        (self.instance.pids / name).write_text(str(process.pid))

    def log(self, name: str) -> Path:
        return self.instance.logs / f"{name}.log"

    def pid(self, name: str) -> int | None:
        """Its process id, None where none was started."""
        path = self.instance.pids / name
        return int(path.read_text()) if path.exists() else None

    def alive(self, name: str) -> bool:
        """Whether it runs. A pid may be another's by now: only one in the cluster's cgroup counts."""
        if (process := self._started.get(name)) is not None:
            return process.poll() is None
        return (pid := self.pid(name)) is not None and pid in cgroups.processes(self.instance.cgroup)

    def must_live(self, name: str) -> None:
        """ClusterError with the end of its log where it has ended."""
        if not self.alive(name):
            raise ClusterError(f"{name} has ended; its log ends:\n{tail(self.log(name))}")

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send it a signal (SIGSTOP and SIGCONT for one that hangs)."""
        self.must_live(name)
        pid = self.pid(name)
        assert pid is not None
        os.kill(pid, number)

    def stop(self, name: str, *, seconds: float = 10.0) -> None:
        """End it, by SIGKILL after `seconds` (0: at once). Again is fine."""
        if self.alive(name):
            self.signal(name, signal.SIGTERM if seconds else signal.SIGKILL)
            deadline = time.monotonic() + seconds
            while self.alive(name) and time.monotonic() < deadline:
                time.sleep(0.05)
            if self.alive(name):
                self.signal(name, signal.SIGKILL)
        if (process := self._started.pop(name, None)) is not None:
            process.wait(timeout=10)
        (self.instance.pids / name).unlink(missing_ok=True)

    def why(self, name: str) -> str:
        """The end of its log, for a message."""
        return f"the log of {name} ends:\n{tail(self.log(name))}"
