"""Child processes pinned to a core, and what the kernel says about them and their children."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

_END_SECONDS = 15.0


class Memory(NamedTuple):
    """MiB of the largest process of a tree, and of all together. `peak`: since the process started."""

    largest: float
    largest_peak: float
    together: float


class Tree:
    """A process and its descendants."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self.log = log

    @property
    def ended(self) -> int | None:
        """Exit status, None while it runs."""
        return self._process.poll()

    def pids(self) -> list[int]:
        """The process, then its descendants as they are now."""
        return [self._process.pid, *(child.pid for child in self._children())]

    def _children(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            found: list[psutil.Process] = psutil.Process(self._process.pid).children(recursive=True)
            return found
        return []

    def memory(self) -> Memory:
        """Resident memory. Pages that processes share count in each of them."""
        now, peak = [], []
        for pid in self.pids():
            with contextlib.suppress(OSError):
                fields = _status(pid)
                now.append(fields["VmRSS"] / 1024)
                peak.append(fields["VmHWM"] / 1024)
        return Memory(max(now, default=0.0), max(peak, default=0.0), sum(now))

    def files(self) -> int:
        """Open file descriptors of all processes."""
        count = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                count += len(os.listdir(f"/proc/{pid}/fd"))
        return count

    def tail(self, size: int = 2000) -> str:
        """The end of its log."""
        return self.log.read_bytes()[-size:].decode("utf-8", "replace")

    def stop(self) -> None:
        """SIGTERM, and SIGKILL for what is left of the tree after a while."""
        left = self._children()
        if self.ended is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
        for child in left:
            with contextlib.suppress(psutil.NoSuchProcess):  # which it is too when its number is another's
                child.kill()
        psutil.wait_procs(left, _END_SECONDS)
        if self.ended is None:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def running(
    command: Sequence[str], *, core: int, log: Path, env: Mapping[str, str] | None = None
) -> Iterator[Tree]:
    """Run `command` on `core` for as long as the block lasts; its output goes to the end of `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        process = subprocess.Popen(
            ["taskset", "-c", str(core), *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
        )
    tree = Tree(process, log)
    try:
        yield tree
    finally:
        tree.stop()


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody listens on now."""
    with contextlib.ExitStack() as held:
        ports = []
        for _ in range(count):
            sock = held.enter_context(socket.socket())
            sock.bind(("127.0.0.1", 0))
            ports.append(sock.getsockname()[1])
        return ports


def _status(pid: int) -> dict[str, int]:
    fields = {}
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if value.endswith(" kB"):
            fields[name] = int(value.split()[0])
    return fields
