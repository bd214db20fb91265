"""The Go programs: their own tests, and a generator that notices what a mock engine did not say."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from bench.router import mocks as mocks_module
from bench.router import tools
from bench.router.mocks import mock_engines

pytestmark = pytest.mark.skipif(shutil.which("go") is None, reason="Go is not installed")

_CORE = min(os.sched_getaffinity(0))


def _go(*arguments: str) -> None:
    command = ["go", *arguments]
    done = subprocess.run(command, cwd=tools.HERE / "go", capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module", autouse=True)
def programs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Built apart, so that a measurement in this tree keeps its own."""
    work = tmp_path_factory.mktemp("bench")
    patch = pytest.MonkeyPatch()
    patch.setattr(tools, "WORK", work)
    patch.setattr(mocks_module, "WORK", work)
    _go("build", "-o", f"{work / 'bin'}/", "./cmd/...")
    yield work
    patch.undo()


def test_vet_and_tests_of_the_go_module() -> None:
    _go("vet", "./...")
    _go("test", "./...")


def test_generator_and_engines_agree(programs: Path) -> None:
    with mock_engines(core=_CORE, prefill=2, decode=1) as mocks:
        address = mocks.decode_address
        for route in ("chat", "completions", "generate"):
            whole = tools.load("requests", address, key="", route=route, conns=2, warm="0s", window="100ms")
            streams = tools.load("streams", address, key="", route=route, conns=2, warm="0s", window="100ms")
            assert whole["errors"] == streams["errors"] == 0
            assert whole["requests"] > 10
            assert streams["all_chunks"] == 16 * streams["all_requests"] > 100
        seen = mocks.stats()
        assert seen["rooms"] == {"paired": 0, "lonely": 0, "twice": 0, "none": seen["engines"][2]["served"]}
        mocks.reset()
        assert mocks.stats()["rooms"]["none"] == 0


def test_paced_streams_keep_their_pace() -> None:
    with mock_engines(core=_CORE, prefill=1, decode=1) as mocks:
        figures = tools.load(
            "streams", mocks.decode_address, key="", conns=4, pace=50, tokens=60, warm="1s", window="500ms"
        )
    assert figures["errors"] == 0
    assert figures["chunks"] == pytest.approx(4 * 50 * 0.5, rel=0.3)


def test_wrong_answers_are_errors() -> None:
    # A prefill engine, asked with a room, answers with its one token whatever was asked.
    with mock_engines(core=_CORE, prefill=1, decode=1) as mocks:
        address = f"127.0.0.1:{mocks.prefill[0]}"
        body = {"text": "x", "bootstrap_room": 5, "sampling_params": {"max_new_tokens": 3}}
        with urllib.request.urlopen(f"http://{address}/generate", json.dumps(body).encode()) as answer:
            assert json.loads(answer.read())["text"] == " t00000"
        figures = tools.load("requests", "127.0.0.1:1", key="", conns=1, warm="0s", window="50ms")
        assert figures["errors"] > 0
        assert "refused" in figures["error_examples"][0]
