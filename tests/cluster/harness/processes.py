"""The operator and its admission server as processes of the checkout, inside the cluster's network.

For tests that kill and restart them at will. As pods, from images, they run in the golden path.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.cluster.harness import certificates, network
from tests.cluster.harness.failure import ClusterError, tail
from tests.cluster.harness.instance import Instance
from tests.cluster.harness.waiting import until

_REPOSITORY: Final = Path(__file__).parents[3]


class Process:
    """`python -m plait_operator WORDS…` that can be started, killed and started again. Its log goes on.

    `ready_url`: answers 200 once it works; '' where nothing is asked.
    """

    def __init__(
        self,
        instance: Instance,
        name: str,
        words: Sequence[str],
        *,
        kubeconfig: Path,
        ready_url: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.words = list(words)
        self.ready_url = ready_url
        self.log = instance.logs / f"{name}.log"
        self._instance = instance
        self._environment = {"KUBECONFIG": str(kubeconfig), "PYTHONUNBUFFERED": "1", **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the running process. ClusterError where it does not run."""
        if not self.alive():
            raise ClusterError(f"{self.name} does not run; its log ends:\n{tail(self.log)}")
        assert self._process is not None
        return self._process.pid

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *extra: str, seconds: float = 60.0) -> None:
        """Start it, with `extra` words at the end; it is ready when this returns."""
        self.launch(*extra)
        self.await_ready(seconds=seconds)

    def launch(self, *extra: str) -> None:
        """Start it and do not wait."""
        if self.alive():
            raise ClusterError(f"{self.name} runs already (pid {self.pid})")
        command = [sys.executable, "-m", "plait_operator", *self.words, *extra]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*network.inside(self._instance), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._environment},
                cwd=_REPOSITORY,
                start_new_session=True,
            )

    def await_ready(self, *, seconds: float = 60.0) -> None:
        """Until `ready_url` answers 200. ClusterError where it ends before, or does not come."""
        if self.ready_url:
            until(self._ready, f"{self.name} ready", seconds=seconds, why_not=lambda: tail(self.log))

    def _ready(self) -> bool:
        if self._process is not None and (code := self._process.poll()) is not None:
            raise ClusterError(f"{self.name} ended with {code} at its start; its log ends:\n{tail(self.log)}")
        return self.healthy()

    def healthy(self) -> bool:
        """Whether `ready_url` answers 200 now."""
        try:
            with urllib.request.urlopen(self.ready_url, timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def kill(self) -> None:
        """SIGKILL: no word of farewell, as when a node dies. Its Lease stays. Again is fine."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=10)

    def terminate(self, *, seconds: float = 20.0) -> int:
        """SIGTERM and its exit code; ClusterError where it does not end in time."""
        assert self._process is not None
        self._process.terminate()
        try:
            return self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ClusterError(
                f"{self.name} did not end {seconds:g} s after SIGTERM:\n{tail(self.log)}"
            ) from None

    def freeze(self) -> None:
        """SIGSTOP: it holds what it holds and does nothing, as in a long pause."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def restart(self, *extra: str) -> None:
        """Kill and start."""
        self.kill()
        self.start(*extra)

    def memory(self) -> int:
        """Resident bytes."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise ClusterError(f"{self.name}: no VmRSS of pid {self.pid}")

    def cpu_seconds(self) -> float:
        """User and system time so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def log_text(self, *, since: int = 0) -> str:
        """Its log, from byte `since` on."""
        with self.log.open("rb") as file:
            file.seek(since)
            return file.read().decode(errors="replace")

    def await_log(self, text: str, *, seconds: float = 30.0, since: int = 0) -> None:
        """Until `text` is in its log."""

        def look() -> bool:
            self.pid  # noqa: B018 (raises where it has ended)
            return text in self.log_text(since=since)

        until(look, f"{text!r} in the log of {self.name}", seconds=seconds, why_not=lambda: tail(self.log))


def account_kubeconfig(instance: Instance, name: str, token: str) -> Path:
    """A kubeconfig with a ServiceAccount's token: who uses it has that account's rights and no more."""
    path = instance.run / "kubeconfig" / f"account-{name}"
    certificates.write_kubeconfig(path, instance, {"token": token})
    return path
