"""`python -m plait.engine`: everything wrong is said at once, early, and what is right becomes the server."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from plait.engine import __main__ as program
from plait.engine import check
from plait.engine.launch import prefill_launch
from plait.model.shape import TinyShape, config_json

GUARD = """
import importlib.abc, sys
class Guard(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ("torch", "sglang", "transformers"):
            raise RuntimeError(f"{name} was imported before the refusals")
sys.meta_path.insert(0, Guard())
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    import json

    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config_json(TinyShape())))
    return folder


def run(flags: list[str], tmp_path: Path, **environ: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """The program's end and the CPU seconds that it took, with heavy imports forbidden."""
    guard = tmp_path / "guard"
    guard.mkdir(exist_ok=True)
    (guard / "sitecustomize.py").write_text(GUARD)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PLAIT_", "SGLANG_"))}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "plait.engine", *flags],
        env={**clean, "PYTHONPATH": str(guard), **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_five_faults_are_told_at_once_within_three_seconds_and_without_torch(
    model: Path, tmp_path: Path
) -> None:
    flags = ["--model-path", str(model), "--disaggregation-mode", "prefill", "--enable-prefill-cp"]
    flags += ["--tp-size", "4", "--attn-cp-size", "2", "--cp-strategy", "zigzag", "--page-size", "32"]
    flags += ["--enable-hierarchical-cache", "--disaggregation-transfer-backend", "nixl"]
    done, seconds = run(flags, tmp_path, PLAIT_LAYOUT="shared")
    assert done.returncode == 78, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("plait: this engine is refused (")
    assert "Traceback" not in done.stderr
    for named in ("tp_size", "cp_strategy", "page_size", "enable_hierarchical_cache", "transfer_backend"):
        assert named in done.stderr, named
    assert done.stderr.count("Fix: ") >= 5
    assert seconds < 3


def test_a_plugin_that_the_engine_would_leave_out_is_refused(model: Path, tmp_path: Path) -> None:
    launch = prefill_launch(
        model=model,
        host="127.0.0.1",
        port=1,
        bootstrap_port=2,
        cp=2,
        layout="shared",
        split="page-interleave",
        chunk=128,
        max_total_tokens=8192,
        context_length=4096,
        state_dir=tmp_path,
    )
    flags = launch.argv[3:]
    done, _ = run(flags, tmp_path, **launch.env, SGLANG_PLUGINS="some-other")
    assert done.returncode == 78, done.stderr
    assert done.stderr == (
        "plait: this engine is refused (1 reason):\n"
        "  SGLANG_PLUGINS = 'some-other': the engine loads the named plugins only, and would start without "
        "Plait. Fix: some-other,plait, or unset it\n"
    )


def test_what_passes_becomes_the_stock_server_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, list[str]]] = []
    checked: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, argv: seen.append((path, argv)))
    monkeypatch.setattr(check, "refuse_or_pass", lambda flags, environ: checked.append(flags))
    program.main(["--", "--model-path", "m"])
    program.main(["--model-path", "m"])
    flags = ["--model-path", "m"]
    assert checked == [flags, flags]
    assert seen == [(sys.executable, [sys.executable, "-m", "sglang.launch_server", *flags])] * 2


def test_what_is_refused_never_becomes_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("the server was started"))
    monkeypatch.setenv("PLAIT_LAYOUT", "shared")
    with pytest.raises(SystemExit) as end:
        program.main(["--no-such-flag"])
    assert end.value.code == 78
