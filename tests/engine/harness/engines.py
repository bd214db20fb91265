"""Real engine processes on this machine, each started once and shared by the tests of a module."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

START_WITHIN_S = 420.0
CONTEXT = 4096
TOKENS = 8192
FLOAT32 = ("--dtype", "float32")


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@dataclass
class Engine:
    """One running engine. `state` is the folder of its ranks' figures."""

    name: str
    process: subprocess.Popen[bytes] | None
    url: str
    log: Path
    state: Path | None = None
    bootstrap_port: int | None = None

    def status(self) -> dict[str, Any]:
        """Body of GET /plait/status."""
        answer = httpx.get(f"{self.url}/plait/status", timeout=10)
        answer.raise_for_status()
        told: dict[str, Any] = answer.json()
        return told

    def ranks(self) -> list[dict[str, Any]]:
        """Status of each rank, not older than now."""
        asked = time.time()
        deadline = asked + 10
        while time.time() < deadline:
            ranks: list[dict[str, Any]] = self.status()["ranks"]
            if all(rank["updated_at"] >= asked for rank in ranks):
                return ranks
            time.sleep(0.05)
        raise AssertionError(f"{self.name}: rank figures are older than 10 s")

    def flush(self) -> None:
        """Empty the radix tree; waits until the engine is idle."""
        deadline = time.time() + 30
        while time.time() < deadline:
            if httpx.post(f"{self.url}/flush_cache", timeout=30).status_code == 200:
                return
            time.sleep(0.1)
        raise AssertionError(f"{self.name} would not flush its cache")

    def account(self) -> list[dict[str, Any]]:
        """Page accounting of each rank, run now."""
        answer = httpx.post(f"{self.url}/plait/integrity", timeout=30)
        assert answer.status_code == 200, answer.text
        ranks: list[dict[str, Any]] = answer.json()["ranks"]
        return ranks

    def batches(self) -> list[dict[str, Any]]:
        """Every batch formed so far, in order (PLAIT_DEBUG_CHECKS)."""
        assert self.state is not None
        return _lines(self.state / "batches.jsonl")

    def forwards(self) -> list[dict[str, Any]]:
        """How every context-parallel prefill was run so far: the tail it was given, and of how many requests
        page ids were known on the host (PLAIT_DEBUG_CHECKS)."""
        assert self.state is not None
        return _lines(self.state / "forwards.jsonl")


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def start(
    name: str, argv: Sequence[str], env: Mapping[str, str], *, url: str, folder: Path, **known: Any
) -> Engine:
    """Start one engine; it is ready when `wait` returns."""
    log = folder / f"{name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            list(argv),
            env={**os.environ, **env},
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    return Engine(name, process, url, log, **known)


def wait(engine: Engine) -> Engine:
    """Return once the engine serves; AssertionError with the end of its log if it ends before."""
    deadline = time.time() + START_WITHIN_S
    while time.time() < deadline:
        text = engine.log.read_text(errors="replace")
        if "fired up" in text:
            return engine
        if engine.process is not None and engine.process.poll() is not None:
            raise AssertionError(f"{engine.name} ended at start:\n{tail(engine.log)}")
        time.sleep(0.25)
    raise AssertionError(f"{engine.name} was not ready in {START_WITHIN_S:.0f} s:\n{tail(engine.log)}")


def stop(*processes: subprocess.Popen[bytes] | None) -> None:
    """End processes and all their descendants, together."""
    families: list[psutil.Process] = []
    live = [process for process in processes if process is not None and process.poll() is None]
    for process in live:
        with contextlib.suppress(psutil.NoSuchProcess):
            families += [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            os.killpg(process.pid, signal.SIGTERM)
    _, alive = psutil.wait_procs(families, timeout=8)
    for one in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    for process in live:
        process.wait(timeout=10)


def tail(log: Path, lines: int = 25) -> str:
    """The last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def prefill(
    name: str,
    *,
    model: Path,
    folder: Path,
    layout: str,
    cp: int,
    chunk: int,
    split: str = "page-interleave",
    tokens: int = TOKENS,
    env: Mapping[str, str] | None = None,
) -> Engine:
    """Start a prefill group through the same launch data that `plait up` uses."""
    from plait.engine.launch import prefill_launch

    port, bootstrap = free_port(), free_port()
    launch = prefill_launch(
        model=model,
        host="127.0.0.1",
        port=port,
        bootstrap_port=bootstrap,
        cp=cp,
        layout=layout,
        split=split,
        chunk=chunk,
        max_total_tokens=tokens,
        context_length=CONTEXT,
        state_dir=folder / name,
        extra=FLOAT32,
        env={"PLAIT_DEBUG_CHECKS": "1", **(env or {})},
    )
    return start(
        name,
        launch.argv,
        launch.env,
        url=f"http://127.0.0.1:{port}",
        folder=folder,
        state=folder / name / f"prefill-{port}",
        bootstrap_port=bootstrap,
    )


def decode(name: str, *, model: Path, folder: Path) -> Engine:
    """Start a decode engine."""
    from plait.engine.launch import decode_launch

    port = free_port()
    launch = decode_launch(
        model=model,
        host="127.0.0.1",
        port=port,
        index=0,
        max_total_tokens=4 * CONTEXT,
        context_length=CONTEXT,
        state_dir=folder / name,
        extra=FLOAT32,
        env={"PLAIT_DEBUG_CHECKS": "1"},
    )
    return start(
        name,
        launch.argv,
        launch.env,
        url=f"http://127.0.0.1:{port}",
        folder=folder,
        state=folder / name / f"decode-{port}",
    )


def stock(name: str, *, model: Path, folder: Path, chunk: int) -> Engine:
    """Stock SGLang at CP 1 on this machine: the plugin's layout is off, only the CPU repairs are in."""
    from plait.contract.launch import COMMON_FLAGS, CPU_FLAGS, EAGER_FLAGS, environment

    port = free_port()
    flags = [
        *("--model-path", str(model), "--host", "127.0.0.1", "--port", str(port)),
        *("--context-length", str(CONTEXT), "--max-total-tokens", str(2 * TOKENS)),
        *("--chunked-prefill-size", str(chunk)),
        *COMMON_FLAGS,
        *EAGER_FLAGS,
        *CPU_FLAGS,
        *FLOAT32,
    ]
    return start(
        name,
        [sys.executable, "-m", "sglang.launch_server", *flags],
        {**environment(cpu=True, ranks=1), "PLAIT_LAYOUT": "off"},
        url=f"http://127.0.0.1:{port}",
        folder=folder,
    )


@contextlib.contextmanager
def running(*engines: Engine) -> Iterator[None]:
    """Wait for all of them, and end all of them afterwards."""
    try:
        for engine in engines:
            wait(engine)
        yield
    finally:
        stop(*(engine.process for engine in engines))


@dataclass
class Stack:
    """A whole stack started by `plait up`."""

    process: subprocess.Popen[bytes]
    router: str
    prefill: Engine
    decode: Engine
    log: Path
    told: dict[str, Any]

    def api(self, path: str) -> dict[str, Any]:
        """Body of a GET on the router."""
        answer = httpx.get(f"{self.router}{path}", timeout=10)
        answer.raise_for_status()
        told: dict[str, Any] = answer.json()
        return told

    def freed(self, *, within_s: float) -> None:
        """Return once /api/v1/cache shows no page in flight and no request; AssertionError if late."""
        deadline = time.time() + within_s
        while True:
            ranks = [rank for worker in self.api("/api/v1/cache")["workers"] for rank in worker["ranks"]]
            busy = [r for r in ranks if r["pages"]["in_flight"]]
            live = [r for r in self.prefill.status()["ranks"] if r["running"] or r["queued"]]
            if not busy and not live:
                return
            assert time.time() < deadline, f"pages are still held after {within_s} s: {busy} {live}"
            time.sleep(0.05)


def up(name: str, *flags: str, model: Path, folder: Path, env: Mapping[str, str] | None = None) -> Stack:
    """Start `plait up` with one decode engine. It is not ready before `wait_stack`."""
    log, file = folder / f"{name}.log", folder / f"{name}.json"
    file.unlink(missing_ok=True)
    argv = [sys.executable, "-m", "plait.cli", "up", "--model", str(model), "--state", str(file)]
    argv += ["--context-length", str(CONTEXT), "--max-total-tokens", str(TOKENS)]
    for side in ("--prefill-arg", "--decode-arg"):
        argv += [f"{side}={flag}" for flag in FLOAT32]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*argv, *flags],
            env={**os.environ, "PLAIT_DEBUG_CHECKS": "1", **(env or {})},
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            cwd=folder,
        )
    blank = Engine(name, None, "", log)
    return Stack(process, "", blank, blank, log, {"file": file})


def wait_stack(stack: Stack) -> Stack:
    """Return once everything is ready, with the engines' addresses filled in."""
    file: Path = stack.told["file"]
    deadline = time.time() + START_WITHIN_S
    while not file.exists():
        ended = stack.process.poll() is not None
        assert not ended, f"plait up ended at start:\n{tail(stack.log, 60)}"
        assert time.time() < deadline, f"plait up was not ready in {START_WITHIN_S:.0f} s:\n{tail(stack.log)}"
        time.sleep(0.25)
    told = json.loads(file.read_text())
    folder = Path(told["folder"])
    stack.told, stack.router = told, told["router"]["url"]
    stack.prefill = _told_engine("prefill", told["prefill"][0], folder)
    stack.decode = _told_engine("decode", told["decode"][0], folder)
    return stack


def _told_engine(role: str, told: dict[str, Any], folder: Path) -> Engine:
    state = folder / told["name"] / f"{role}-{told['port']}"
    return Engine(told["name"], None, told["url"], Path(told["log"]), state, told.get("bootstrap_port"))
