"""Command lines and environments that Plait starts itself are ones that Plait accepts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from plait.contract.settings import Settings
from plait.contract.validate import validate_launch
from plait.engine.launch import CPU_FLAGS, EngineLaunch, decode_launch, prefill_launch
from plait.model.shape import TinyShape, config_json


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(config_json(TinyShape())))
    return tmp_path


def prefill(model: Path, **other: object) -> EngineLaunch:
    given: dict[str, object] = {
        "model": model,
        "host": "127.0.0.1",
        "port": 30000,
        "bootstrap_port": 30001,
        "cp": 2,
        "layout": "shared",
        "split": "page-interleave",
        "chunk": 256,
        "max_total_tokens": 8192,
        "context_length": 4096,
        "state_dir": model / "state",
    }
    return prefill_launch(**{**given, **other})


def decode(model: Path, **other: object) -> EngineLaunch:
    given: dict[str, object] = {
        "model": model,
        "host": "127.0.0.1",
        "port": 30100,
        "index": 0,
        "max_total_tokens": 8192,
        "context_length": 4096,
        "state_dir": model / "state",
    }
    return decode_launch(**{**given, **other})


def refusals(launch: EngineLaunch) -> list[str]:
    found = validate_launch(launch.argv[3:], launch.env, engine_version="0.5.17")
    return [str(violation) for violation in found]


@pytest.mark.parametrize("cp", [2, 4])
@pytest.mark.parametrize("layout", ["shared", "replicated"])
@pytest.mark.parametrize("split", ["page-interleave", "page-zigzag"])
@pytest.mark.parametrize("cpu", [True, False])
def test_a_prefill_launch_is_accepted(model: Path, cp: int, layout: str, split: str, cpu: bool) -> None:
    launch = prefill(model, cp=cp, layout=layout, split=split, cpu=cpu)
    assert refusals(launch) == []
    settings = Settings.from_env(launch.env)
    assert (settings.layout, settings.split, settings.cpu) == (layout, split, cpu)
    assert settings.state_dir == model / "state"


@pytest.mark.parametrize("cpu", [True, False])
@pytest.mark.parametrize("transfer", ["mooncake", "mooncake_tcp"])
def test_a_decode_launch_is_accepted(model: Path, cpu: bool, transfer: str) -> None:
    launch = decode(model, cpu=cpu, transfer=transfer)
    assert refusals(launch) == []
    assert Settings.from_env(launch.env).layout == "plain"


def test_launches_go_through_the_refusals(model: Path) -> None:
    for launch in (prefill(model), decode(model)):
        assert launch.argv[:3] == [sys.executable, "-m", "plait.engine"]


def test_ranks_and_sizes_reach_the_command_line(model: Path) -> None:
    argv = prefill(model, cp=4, chunk=192, max_total_tokens=4096).argv
    for flag, value in {
        "--tp-size": "4",
        "--attn-cp-size": "4",
        "--chunked-prefill-size": "192",
        "--max-total-tokens": "4096",
        "--context-length": "4096",
        "--page-size": "64",
        "--disaggregation-mode": "prefill",
        "--disaggregation-bootstrap-port": "30001",
    }.items():
        assert argv[argv.index(flag) + 1] == value
    assert prefill(model, cp=4).env["SGLANG_CPU_OMP_THREADS_BIND"].count("all") == 4


def test_extra_flags_and_variables_are_last_and_win(model: Path) -> None:
    launch = prefill(model, extra=["--log-level", "debug"], env={"PLAIT_PREFETCH": "0", "PLAIT_CPU": "0"})
    assert launch.argv[-2:] == ["--log-level", "debug"]
    assert launch.env["PLAIT_PREFETCH"] == launch.env["PLAIT_CPU"] == "0"


def test_a_gpu_launch_brings_no_cpu_repairs(model: Path) -> None:
    for launch in (prefill(model, cpu=False), decode(model, cpu=False)):
        assert {flag for flag in CPU_FLAGS if flag.startswith("--")}.isdisjoint(launch.argv)
        assert "PLAIT_CPU" not in launch.env
        assert "TRITON_INTERPRET" not in launch.env


def test_only_decode_on_a_gpu_keeps_graphs_and_overlap(model: Path) -> None:
    eager = {"--disable-cuda-graph", "--disable-overlap-schedule"}
    for launch in (prefill(model), prefill(model, cpu=False), decode(model)):
        assert eager <= set(launch.argv)
    assert eager.isdisjoint(decode(model, cpu=False).argv)


def test_a_pool_that_is_left_to_the_engine_has_no_flag(model: Path) -> None:
    for launch in (
        prefill(model, max_total_tokens=None, cpu=False),
        decode(model, max_total_tokens=None, cpu=False),
    ):
        assert "--max-total-tokens" not in launch.argv
        assert "None" not in launch.argv
        assert refusals(launch) == []


def test_a_launch_that_plait_refuses_is_seen(model: Path) -> None:
    [refusal] = refusals(prefill(model, max_total_tokens=8191))
    assert "max_total_tokens" in refusal
    [refusal] = refusals(prefill(model, extra=["--enable-hierarchical-cache"]))
    assert "enable_hierarchical_cache" in refusal
