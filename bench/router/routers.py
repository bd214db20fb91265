"""The routers that are compared, each with API key, metrics, placement by prefix and health checks on."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from bench.router.mocks import Mocks
from bench.router.processes import Tree, free_ports, running
from bench.router.tools import HERE, WORK, LoadError, python

SGLANG_LOG_LEVEL = "info"
"""sglang-router's own, which its users run."""
KEY = "plait-bench-key-0123456789"
_THIS = Path(sys.executable)
_START_SECONDS = 60.0
# Both are told to look after their engines as often as a dead one has to be noticed (2 s).
_HEALTH_SECONDS = 2


class Running(NamedTuple):
    """A router that answers."""

    name: str
    address: str
    admin: str
    tree: Tree


class Router(Protocol):
    """How one kind of router is started."""

    name: str

    def command(self, mocks: Mocks, *, port: int, admin_port: int) -> list[str]:
        """Command line that serves on `port`, and metrics on `admin_port`."""


class Plait:
    """`plait router` as `python` has it installed, in so many processes."""

    def __init__(self, *, python: Path = _THIS, processes: int = 1) -> None:
        self.name = "plait" if processes == 1 else f"plait x{processes}"
        self._python = python
        self._processes = processes

    def command(self, mocks: Mocks, *, port: int, admin_port: int) -> list[str]:
        """Its command line, with the options that this version of it has (see `features`)."""
        command = [_plait(self._python), "router", "--port", str(port), "--admin-port", str(admin_port)]
        command += ["--log-level", "warning"]
        has = features(self._python)
        if has["workers_file"]:
            command += ["--workers-file", str(_workers_file(mocks))]
        else:
            command += [f"--prefill={url},{bootstrap}" for url, bootstrap in mocks.prefill_targets]
            command += [f"--decode={url}" for url in mocks.decode_urls]
        if has["api_keys"]:
            command += ["--api-keys", str(_keys_file())]
        if has["policy"]:
            command += ["--policy", "prefix-aware"]
        if self._processes > 1:
            command += ["--processes", str(self._processes)]
        return command


class SglangRouter:
    """sglang-router in PD mode; `pairs` False: before the prefill engines alone, which then answer prompts.

    In PD mode 0.3.2 never fills the tree of cache_aware, and takes workers at random (its debug log: "No tree
    found for model"; sglang#23573, #25184). The other mode shows what cache_aware does when it works.
    """

    def __init__(self, *, pairs: bool = True, log_level: str = SGLANG_LOG_LEVEL) -> None:
        self.name = "sglang-router" if pairs else "sglang-router, no PD"
        self._pairs = pairs
        self._log_level = log_level

    def command(self, mocks: Mocks, *, port: int, admin_port: int) -> list[str]:
        """Its command line. At its own log level it writes two lines for each request."""
        command = [str(python()), "-m", "sglang_router.launch_router"]
        command += ["--host", "127.0.0.1", "--port", str(port), "--policy", "cache_aware", "--api-key", KEY]
        command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(admin_port)]
        command += ["--worker-startup-check-interval", "1"]
        command += ["--health-check-interval-secs", str(_HEALTH_SECONDS), "--log-level", self._log_level]
        if not self._pairs:
            return [*command, "--worker-urls", *(url for url, _ in mocks.prefill_targets)]
        command.append("--pd-disaggregation")
        for url, bootstrap in mocks.prefill_targets:
            command += ["--prefill", url, str(bootstrap)]
        for url in mocks.decode_urls:
            command += ["--decode", url]
        return command


class Baseline:
    """FastAPI with httpx (`baseline.py`): the router that one writes first."""

    name = "fastapi+httpx"

    def command(self, mocks: Mocks, *, port: int, admin_port: int) -> list[str]:
        """Its command line. Metrics are on the port itself: `admin_port` is not used."""
        command = [str(python()), str(HERE / "baseline.py"), "--port", str(port), "--key", KEY]
        command += ["--health-seconds", str(_HEALTH_SECONDS)]
        for url, bootstrap in mocks.prefill_targets:
            command += ["--prefill", f"{url},{bootstrap}"]
        for url in mocks.decode_urls:
            command += ["--decode", url]
        return command


@contextlib.contextmanager
def started(router: Router, mocks: Mocks, *, core: int) -> Iterator[Running]:
    """`router` before `mocks`, for as long as the block lasts. Raises LoadError where it does not serve."""
    port, admin_port = free_ports(2)
    log = WORK / f"{router.name.replace(' ', '-')}.log"
    command = router.command(mocks, port=port, admin_port=admin_port)
    if router.name == Baseline.name:
        admin_port = port
    with running(command, core=core, log=log) as tree:
        found = Running(router.name, f"127.0.0.1:{port}", f"127.0.0.1:{admin_port}", tree)
        _until_serving(found)
        yield found


@functools.cache
def features(python: Path = _THIS) -> dict[str, bool]:
    """Which options `plait router` has as `python` runs it. What is False is off in the measurement."""
    done = subprocess.run(
        [_plait(python), "router", "--help"],
        env={**os.environ, "COLUMNS": "300", "NO_COLOR": "1", "TERM": "dumb"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    options = ("--api-keys", "--policy", "--processes", "--workers-file")
    return {option[2:].replace("-", "_"): option in done.stdout for option in options}


def refuses_strangers(router: Running) -> bool:
    """Whether a request without a key is refused."""
    return _ask(router, key="") == 401


def metrics_size(router: Running) -> int:
    """Bytes that it gives to Prometheus; 0: it has no metrics."""
    try:
        with urllib.request.urlopen(f"http://{router.admin}/metrics", timeout=10) as answer:
            return len(answer.read())
    except OSError:
        return 0


def _until_serving(router: Running) -> None:
    until = time.monotonic() + _START_SECONDS
    while (status := _ask(router, key=KEY)) != 200:
        if router.tree.ended is not None or time.monotonic() > until:
            raise LoadError(
                f"{router.name} did not serve within {_START_SECONDS:g} s (last: {status}), its log ends:\n"
                f"{router.tree.tail()}"
            )
        time.sleep(0.1)


def _ask(router: Running, *, key: str) -> int:
    """HTTP status of a small request, 0 without an answer."""
    body = {"model": "mock", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
    request = urllib.request.Request(
        f"http://{router.address}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {}),
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def _plait(python: Path) -> str:
    return str(python.with_name("plait"))


def _keys_file() -> Path:
    path = WORK / "api-keys"
    path.write_text(f"bench sha256:{hashlib.sha256(KEY.encode()).hexdigest()}\n", encoding="utf-8")
    return path


def _workers_file(mocks: Mocks) -> Path:
    path = WORK / "workers.yaml"
    workers = {
        "prefill": [{"url": url, "bootstrapPort": port} for url, port in mocks.prefill_targets],
        "decode": [{"url": url} for url in mocks.decode_urls],
    }
    # JSON is YAML too.
    path.write_text(json.dumps({"workers": workers}, indent=1), encoding="utf-8")
    return path
