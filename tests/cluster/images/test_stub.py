"""The stub engine as a process, with the injected tree: real launcher, pod commands and router around it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from tests.cluster.images import recipes
from tests.cluster.images.flags import contract_file, launch
from tests.router.harness.ports import free_port

from plait.contract.status import EngineStatus
from plait.contract.verdict import read_verdict


class Engines:
    """Starts stub engines on loopback; all end with the test."""

    def __init__(self, folder: Path, tree: Path, stack: contextlib.ExitStack) -> None:
        self.model = recipes.model(folder / "model")
        self.site = folder / "engine"
        for name, content in recipes.stub().items():
            (self.site / name).parent.mkdir(parents=True, exist_ok=True)
            (self.site / name).write_bytes(content)
        self._tree, self._stack, self._folder = tree, stack, folder
        self.bootstrap = free_port()

    def env(self, told: Mapping[str, str]) -> dict[str, str]:
        outer = {k: v for k, v in os.environ.items() if not k.startswith(("PLAIT_", "SGLANG_", "STUB_"))}
        # The tree stands first, as in a pod; the stub hides the real engine of this environment.
        return {**outer, "PYTHONPATH": f"{self._tree}:{self.site}", **told}

    def start(self, role: str, **switches: str) -> Engine:
        port = free_port()
        flags, env = launch(role, model=self.model, host="127.0.0.1", port=port, bootstrap=self.bootstrap)
        env |= {f"STUB_{name.upper()}": value for name, value in switches.items()}
        log = self._folder / f"{role}-{port}.log"
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "plait.engine", *flags],
            env=self.env(env),
            stdout=self._stack.enter_context(log.open("wb")),
            stderr=subprocess.STDOUT,
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return Engine(process, f"http://127.0.0.1:{port}", log)

    def pod_command(
        self, role: str, module: str, *words: str, **switches: str
    ) -> subprocess.CompletedProcess[str]:
        """A command of `plait.pod` with an engine's environment and, for preflight, its flags."""
        flags, env = launch(role, model=self.model, host="127.0.0.1", port=1, bootstrap=2)
        env |= {f"STUB_{name.upper()}": value for name, value in switches.items()}
        return subprocess.run(
            [
                sys.executable,
                "-P",
                "-m",
                f"plait.pod.{module}",
                *words,
                *(["--", *flags] if module == "preflight" else []),
            ],
            env=self.env(env),
            capture_output=True,
            text=True,
            timeout=60,
        )


class Engine:
    """One stub engine."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self.process, self.url, self.log = process, url, log

    def status(self) -> EngineStatus:
        return EngineStatus.model_validate_json(httpx.get(f"{self.url}/plait/status", timeout=5).content)

    def ready(self) -> Engine:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/health", timeout=5).status_code == 200:
                    return self
            time.sleep(0.05)
        raise AssertionError(f"not ready: {self.log.read_text()}")


class Pair(NamedTuple):
    """A prefill and a decode engine that are well."""

    prefill: Engine
    decode: Engine


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory, tree: Path) -> Iterator[Engines]:
    with contextlib.ExitStack() as stack:
        yield Engines(tmp_path_factory.mktemp("engines"), tree, stack)


@pytest.fixture(scope="module")
def pair(engines: Engines) -> Pair:
    started = Pair(engines.start("prefill"), engines.start("decode"))
    return Pair(*(engine.ready() for engine in started))


@contextlib.contextmanager
def router(
    engines: Engines, prefill: Engine, decode: Engine, *, states: tuple[int, ...] = (200,)
) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-P", "-m", "plait.cli", "router", "--port", str(port)]
    command += ["--prefill", f"{prefill.url},{engines.bootstrap}", "--decode", decode.url, "--retries", "0"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.HTTPError):
                # Ready or not: it has polled both by now.
                if httpx.get(f"{url}/ready", timeout=5).status_code in states:
                    break
            time.sleep(0.1)
        yield url
    finally:
        process.kill()
        process.wait()


def test_the_status_is_that_of_the_contract(engines: Engines, pair: Pair) -> None:
    for role, engine in pair._asdict().items():
        expected = json.loads(contract_file(engines.model, role))
        status = engine.status()
        assert status.role == role
        assert status.wire_hash == expected["wire_hash"]
        assert role == "decode" or status.group_hash == expected["group_hash"]
        assert len(status.ranks) == status.cp == (2 if role == "prefill" else 1)
        assert status.capacity.tokens == 8192
        # What the real engine with these flags was seen to say.
        assert status.capacity.tokens_replicated == (3968 if role == "prefill" else 8192)


def test_the_real_router_pairs_and_serves(engines: Engines, pair: Pair) -> None:
    body = {"model": "model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
    with router(engines, *pair) as url:
        whole = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=30)
        streamed = httpx.post(f"{url}/v1/chat/completions", json={**body, "stream": True}, timeout=30)
        generated = httpx.post(
            f"{url}/generate", json={"text": "hi", "sampling_params": {"max_new_tokens": 3}}, timeout=30
        )
    assert whole.status_code == 200, whole.text
    assert whole.json()["choices"][0]["message"]["content"] == " a" * 5
    assert streamed.text.count('" a"') == 5
    assert streamed.text.rstrip().endswith("data: [DONE]")
    assert generated.json()["text"] == " a a a"


def test_engines_that_disagree_are_not_paired(engines: Engines, pair: Pair) -> None:
    decode = engines.start("decode", wire_hash="f" * 64).ready()
    body = {"model": "model", "prompt": "hi", "max_tokens": 5}
    with router(engines, pair.prefill, decode, states=(200, 503)) as url:
        assert httpx.get(f"{url}/ready", timeout=5).status_code == 503
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=30)
    assert answer.status_code == 503, answer.text


def test_preflight_passes_in_it(engines: Engines, tmp_path: Path) -> None:
    for role in ("prefill", "decode"):
        (tmp_path / "contract.json").write_text(contract_file(engines.model, role))
        run = engines.pod_command(
            role, "preflight", "--contract", str(tmp_path / "contract.json"), "--gpus", "0"
        )
        verdict = read_verdict(run.stdout)
        assert run.returncode == 0, run.stderr
        assert verdict.ok
        hooks = next(check for check in verdict.checks if check.name == "hooks")
        assert int(hooks.value.split()[0]) > 10


def test_preflight_tells_of_hooks_that_do_not_fit(engines: Engines, tmp_path: Path) -> None:
    (tmp_path / "contract.json").write_text(contract_file(engines.model, "decode"))
    words = ["--contract", str(tmp_path / "contract.json"), "--gpus", "0"]
    run = engines.pod_command("decode", "preflight", *words, hooks="missing")
    assert run.returncode == 1
    (failed,) = read_verdict(run.stdout).failed
    assert "hook target is missing" in failed.reason


def test_drain_waits_for_a_request(engines: Engines, pair: Pair) -> None:
    idle, busy = pair.decode, engines.start("decode", busy="1").ready()
    words = ["--leave-s", "0", "--quiet-s", "0.2", "--deadline-s", "1.5", "--url"]
    assert engines.pod_command("decode", "drain", *words, idle.url).returncode == 0
    run = engines.pod_command("decode", "drain", *words, busy.url)
    assert run.returncode == 1
    assert "1 running" in run.stderr


def test_it_ends_when_it_is_told_to(engines: Engines) -> None:
    engine = engines.start("decode").ready()
    engine.process.terminate()
    assert engine.process.wait(timeout=10) == 0


def test_it_misbehaves_as_asked(engines: Engines) -> None:
    never = engines.start("decode", never_ready="1")
    crash = engines.start("decode", crash_after_s="0.5")
    slow = engines.start("decode", start_s="2", tokens="128", status="off")
    began = time.monotonic()
    slow.ready()
    assert time.monotonic() - began > 1.5
    assert httpx.get(f"{slow.url}/plait/status", timeout=5).status_code == 404
    assert httpx.get(f"{never.url}/health", timeout=5).status_code == 503
    assert never.status().role == "decode"
    assert crash.process.wait(timeout=10) == 1


@pytest.mark.parametrize(("name", "value"), [("colour", "red"), ("start_s", "soon"), ("busy", "yes")])
def test_a_switch_that_is_none_ends_it(engines: Engines, name: str, value: str) -> None:
    engine = engines.start("decode", **{name: value})
    assert engine.process.wait(timeout=30) == 1
    assert f"STUB_{name.upper()}" in engine.log.read_text()


def test_the_real_launcher_refuses_what_it_refuses(engines: Engines) -> None:
    flags, env = launch("prefill", model=engines.model, host="127.0.0.1", port=1, bootstrap=2)
    command = [sys.executable, "-P", "-m", "plait.engine", *flags, "--enable-lora"]
    run = subprocess.run(command, env=engines.env(env), capture_output=True, text=True, timeout=60)
    assert run.returncode == 78
    assert "this engine is refused" in run.stderr
