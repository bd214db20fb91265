"""`plait router` as a process of its own: the command, its ports, its log."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.router.conformance.engine import Engine
from tests.router.harness.command import router_command

_START_S = 60.0
_END_S = 20.0
# Stands in every prompt and key of these tests, so that a log that holds one can be told.
SECRET = "s3cret-7f3a"


@dataclass(frozen=True, kw_only=True)
class Router:
    """A router that runs, its engines, and the file with all it said."""

    url: str
    admin_url: str
    address: tuple[str, int]
    prefill: Engine
    decode: Engine
    log: Path

    @property
    def engines(self) -> tuple[Engine, Engine]:
        return self.prefill, self.decode


@contextlib.contextmanager
def running(folder: Path, prefill: Engine, decode: Engine, *options: str) -> Iterator[Router]:
    """Start a router before the two engines and wait until it is ready; end it by SIGTERM.

    Fails where the router ends badly, or logged a traceback or a secret.
    """
    port, admin_port = free_port(), free_port()
    command = [
        *(*router_command(), "--log-level", "debug"),
        *("--prefill", f"{prefill.url},8998", "--decode", decode.url),
        *("--port", str(port), "--admin-port", str(admin_port)),
        *options,
    ]
    log = folder / "router.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    made = Router(
        url=f"http://127.0.0.1:{port}",
        admin_url=f"http://127.0.0.1:{admin_port}",
        address=("127.0.0.1", port),
        prefill=prefill,
        decode=decode,
        log=log,
    )
    try:
        _wait_ready(made, process)
        yield made
        process.terminate()
        assert process.wait(_END_S) == 0, tail(log)
    finally:
        process.kill()
        process.wait()
    said = log.read_text(errors="replace")
    assert "Traceback" not in said, tail(log)
    assert SECRET not in said, "a prompt or a key is in the log"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-40:])


def _wait_ready(router: Router, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        assert process.poll() is None, f"the router ended at once:\n{tail(router.log)}"
        try:
            with urllib.request.urlopen(router.admin_url + "/ready", timeout=5):
                return
        except OSError:  # refused, or 503: urllib's errors are OSErrors too
            time.sleep(0.05)
    raise AssertionError(f"not ready in {_START_S} s:\n{tail(router.log)}")
