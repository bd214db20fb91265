"""The command lines that are compared."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from bench.router import routers
from bench.router.mocks import Mocks
from bench.router.routers import KEY, Baseline, Plait, SglangRouter

_MOCKS = Mocks([7001, 7002], [7101])


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(routers, "WORK", tmp_path)
    return tmp_path


def test_plait_runs_with_all_that_is_compared(work: Path) -> None:
    assert all(routers.features().values())
    command = Plait(processes=4).command(_MOCKS, port=1, admin_port=2)
    assert " ".join(command).endswith(
        f"--workers-file {work}/workers.yaml --api-keys {work}/api-keys --policy prefix-aware --processes 4"
    )
    workers = json.loads((work / "workers.yaml").read_text())["workers"]
    assert workers["prefill"][1] == {"url": "http://127.0.0.1:7002", "bootstrapPort": 8999}
    assert workers["decode"] == [{"url": "http://127.0.0.1:7101"}]
    name, kind, digest = (work / "api-keys").read_text().strip().replace(":", " ").split()
    assert (name, kind) == ("bench", "sha256")
    assert digest == hashlib.sha256(KEY.encode()).hexdigest()


def test_one_process_is_not_asked_for() -> None:
    assert "--processes" not in Plait().command(_MOCKS, port=1, admin_port=2)


def test_another_interpreter_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    has = routers.features()
    monkeypatch.setattr(routers, "features", lambda python: has)
    command = Plait(python=Path("/opt/lean/bin/python")).command(_MOCKS, port=1, admin_port=2)
    assert command[:2] == ["/opt/lean/bin/plait", "router"]


def test_sglang_router_logs_as_its_users_have_it() -> None:
    command = SglangRouter().command(_MOCKS, port=1, admin_port=2)
    assert command[command.index("--log-level") + 1] == "info"


def test_sglang_router_pairs_or_not() -> None:
    pairs = SglangRouter().command(_MOCKS, port=1, admin_port=2)
    assert pairs[pairs.index("--prefill") :][:3] == ["--prefill", "http://127.0.0.1:7001", "8998"]
    assert pairs[-2:] == ["--decode", "http://127.0.0.1:7101"]
    alone = SglangRouter(pairs=False).command(_MOCKS, port=1, admin_port=2)
    assert alone[-3:] == ["--worker-urls", "http://127.0.0.1:7001", "http://127.0.0.1:7002"]
    for command in (pairs, alone):
        assert {"--api-key", "cache_aware", "--prometheus-port", "--health-check-interval-secs"} <= {*command}


def test_the_baseline_gets_the_same_workers() -> None:
    command = Baseline().command(_MOCKS, port=1, admin_port=2)
    assert command[-6:] == [
        "--prefill", "http://127.0.0.1:7001,8998",
        "--prefill", "http://127.0.0.1:7002,8999",
        "--decode", "http://127.0.0.1:7101",
    ]  # fmt: skip
