"""The command line: every command is there, answers at once, and passes on what it was told."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from plait import cli
from plait.model.shape import TinyShape, config_json

RUNNER = CliRunner()


def _run(*command: str, **options: Any) -> tuple[subprocess.CompletedProcess[str], float]:
    """A run, and the processor seconds it took: what the command costs, however busy the machine is."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = subprocess.run([sys.executable, *command], capture_output=True, text=True, **options)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return run, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _guarded(*args: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """A run of `plait` that fails as soon as torch or the engine is imported."""
    code = (
        "import sys\n"
        "class Guard:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name.partition('.')[0] in ('torch', 'sglang'):\n"
        "            raise AssertionError(f'{name} was imported')\n"
        "sys.meta_path.insert(0, Guard())\n"
        "from plait.cli import main\n"
        "main()\n"
    )
    return _run("-c", code, *args)


def test_help_lists_every_command_within_a_second_and_without_torch() -> None:
    run, seconds = _guarded("--help")
    assert run.returncode == 0, run.stderr
    for command in ("model", "up", "demo", "check", "doctor", "router", "engine"):
        assert f"  {command} " in run.stdout
    assert seconds < 1.0


def test_check_answers_within_a_second_and_without_torch(tmp_path: Path) -> None:
    path = tmp_path / "stack.json"
    config = {"model": {"shape": config_json(TinyShape())}, "prefill": {"contextParallel": 1}}
    path.write_text(json.dumps(config))
    run, seconds = _guarded("check", "--json", str(path))
    assert run.returncode == 1, run.stderr
    fields = [each["field"] for each in json.loads(run.stdout)["violations"]]
    assert "prefill.contextParallel" in fields
    assert seconds < 1.0


def test_up_refuses_without_torch_and_says_all_at_once(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_json(TinyShape())))
    run, _ = _guarded("up", "--model", str(tmp_path), "--cp", "9", "--chunk", "100", "--layout", "shred")
    assert run.returncode == 2
    for word in ("--cp = 9", "--chunk = 100", "--layout = 'shred'", "Fix: shared"):
        assert word in run.stderr


def test_an_engine_is_refused_within_three_seconds_and_without_torch(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_json(TinyShape())))
    flags = ["--model-path", str(tmp_path), "--enable-lora", "--page-size", "32"]
    run, seconds = _run(
        *("-X", "importtime", "-m", "plait.cli", "engine", "--", *flags),
        env={"PLAIT_LAYOUT": "shared", "PATH": "/usr/bin"},
    )
    assert run.returncode != 0
    assert seconds < 3.0
    said = [line for line in run.stderr.splitlines() if not line.startswith("import time:")]
    assert any("page_size" in line for line in said)
    assert any("lora" in line.lower() for line in said)
    imported = [line.rpartition("|")[2].strip() for line in run.stderr.splitlines() if "import time:" in line]
    assert "plait.contract.settings" in imported
    assert not {"torch", "sglang"} & set(imported)


def test_model_tiny_makes_a_model_and_refuses_a_bad_shape(tmp_path: Path) -> None:
    made = RUNNER.invoke(cli.app, ["model", "tiny", str(tmp_path / "m"), "--layers", "2", "--topk", "32"])
    assert made.exit_code == 0
    assert json.loads((tmp_path / "m" / "config.json").read_text())["index_topk"] == 32
    again = RUNNER.invoke(cli.app, ["model", "tiny", str(tmp_path / "m"), "--layers", "2", "--topk", "32"])
    assert "already there" in again.output
    bad = RUNNER.invoke(cli.app, ["model", "tiny", str(tmp_path / "n"), "--index-heads", "4"])
    assert bad.exit_code == 2
    assert "index_heads=4: must be at least 16" in bad.output


def test_up_passes_its_options_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import plait.stack.command

    seen: dict[str, Any] = {}

    def run_up(options: object, **rest: object) -> int:
        seen.update(options=options, **rest)
        return 7

    monkeypatch.setattr(plait.stack.command, "run_up", run_up)
    (tmp_path / "config.json").write_text(json.dumps(config_json(TinyShape())))
    given = [
        "--cp",
        "4",
        "--decode",
        "2",
        "--layout",
        "replicated",
        "--split",
        "page-zigzag",
        "--chunk",
        "192",
    ]
    given += [
        "--port",
        "31234",
        "--state",
        "s.json",
        "--context-length",
        "1024",
        "--max-total-tokens",
        "4096",
    ]
    given += [
        "--cpu",
        "--prefill-arg=--log-requests",
        "--decode-arg=--a",
        "--decode-arg=b",
        "--start-timeout",
        "9",
    ]
    result = RUNNER.invoke(cli.app, ["up", "--model", str(tmp_path), *given])
    assert result.exit_code == 7
    options = seen["options"]
    assert (options.cp, options.decode, options.layout, options.split) == (4, 2, "replicated", "page-zigzag")
    assert (options.chunk, options.context_length, options.max_total_tokens) == (192, 1024, 4096)
    assert options.prefill_args == ("--log-requests",)
    assert options.decode_args == ("--a", "b")
    assert (seen["port"], seen["state"], seen["start_timeout_s"]) == (31234, Path("s.json"), 9.0)


@pytest.mark.parametrize(
    ("args", "module", "name", "expected"),
    [
        (["demo", "--cp", "4"], "demo", "run_demo", {"cp": 4, "decode": 1}),
        (["doctor", "--no-hooks", "--json"], "doctor", "run_doctor", {"hooks": False, "as_json": True}),
    ],
)
def test_the_others_pass_their_options_on(
    monkeypatch: pytest.MonkeyPatch, args: list[str], module: str, name: str, expected: dict[str, object]
) -> None:
    import importlib

    seen: dict[str, object] = {}

    def run(**options: object) -> int:
        seen.update(options)
        return 3

    monkeypatch.setattr(importlib.import_module(f"plait.stack.{module}"), name, run)
    assert RUNNER.invoke(cli.app, args).exit_code == 3
    assert seen == expected


def test_the_router_command_is_the_routers_own() -> None:
    result = RUNNER.invoke(cli.app, ["router", "--help"])
    assert result.exit_code == 0
    assert "--engine-api-key" in result.output
