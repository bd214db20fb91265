"""A router of its own before engines that run already: with an admin port, and flags that a test needs."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from tests.router.harness.ports import free_port

from harness.engines import Engine, stop, tail

_START_WITHIN_S = 60.0


@dataclass
class Router:
    """A running router: `url` for clients, `admin` for operators."""

    process: subprocess.Popen[bytes]
    url: str
    admin: str
    log: Path

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples with these labels, now; 0 where there is none yet."""
        text = httpx.get(f"{self.admin}/metrics", timeout=10).raise_for_status().text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def aborts(self) -> dict[str, float]:
        """Abort messages that the engines of each side have taken so far."""
        return {
            side: self.metric("plait_router_aborts_total", side=side, result="taken")
            for side in ("prefill", "decode")
        }

    def worker(self, url: str) -> dict[str, Any]:
        """What the admin API says of the worker at `url`."""
        told = httpx.get(f"{self.admin}/api/v1/workers", timeout=10).raise_for_status().json()
        [worker] = [one for one in told["workers"] if one["url"] == url]
        found: dict[str, Any] = worker
        return found

    def order(self, what: str, url: str) -> None:
        """POST to the admin API: `drain` or `undrain` the worker at `url`."""
        httpx.post(f"{self.admin}/api/v1/workers/{what}", params={"url": url}, timeout=10).raise_for_status()


@contextlib.contextmanager
def router(name: str, *flags: str, prefill: Engine, decode: Engine, folder: Path) -> Iterator[Router]:
    """Start a router before this pair; it is ready in the block, and ended with it."""
    port, admin = free_port(), free_port()
    argv = [sys.executable, "-m", "plait.cli", "router", "--port", str(port), "--admin-port", str(admin)]
    argv += ["--prefill", f"{prefill.url},{prefill.bootstrap_port}", "--decode", decode.url]
    log = folder / f"{name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*argv, *flags],
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    started = Router(process, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin}", log)
    try:
        _wait(started)
        yield started
    finally:
        stop(process)


def _wait(started: Router) -> None:
    deadline = time.time() + _START_WITHIN_S
    while True:
        assert started.process.poll() is None, f"the router ended at start:\n{tail(started.log)}"
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{started.url}/ready", timeout=2).status_code == 200:
                return
        assert time.time() < deadline, f"the router was not ready in {_START_WITHIN_S:.0f} s"
        time.sleep(0.1)
