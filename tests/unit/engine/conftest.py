"""Two ways to the stock engine, each imported once a session (15 CPU seconds): in this process for pure
parts (`engine`), and in a process that forks for starts that go wrong (`scenarios`)."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from plait.contract.settings import Settings
from plait.engine import state

ROOT = Path(__file__).parents[3]
CPU_ENGINE = {"TORCHDYNAMO_DISABLE": "1", "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}


class Outcome(NamedTuple):
    """How a process ended."""

    status: int
    out: str
    err: str

    @property
    def facts(self) -> dict[str, object]:
        """What the scenario told about itself."""
        told: dict[str, object] = json.loads(self.out)
        return told

    @property
    def refusal(self) -> str:
        """The one message of a start that was refused; fails if there is none, or more than one."""
        before, mark, message = self.err.rpartition("plait: ")
        assert mark, f"no message of Plait's in:\n{self.err}"
        assert "plait: " not in before.replace("sglang.srt.plugins -> plait: ", ""), self.err
        assert self.status == 78
        return message


@pytest.fixture(scope="session")
def scenarios(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """All of `start_scenarios`, by name."""
    target = tmp_path_factory.mktemp("scenarios") / "outcomes.json"
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("PLAIT_", "SGLANG_"))}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("start_scenarios.py")), str(target)],
        env={**environ, **CPU_ENGINE, "PLAIT_CPU": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {name: Outcome(*told) for name, told in json.loads(target.read_text()).items()}


@pytest.fixture(scope="session")
def engine() -> Iterator[None]:
    """Makes `sglang` and Plait's engine rooms importable here, without hooks; repairs are taken back."""
    before = (torch.tensor, torch.cuda.current_stream, torch.cuda.get_device_capability)
    if not torch.cuda.is_available():
        from plait.engine.cpu import shim

        shim.apply()
    policy = asyncio.get_event_loop_policy()
    with pytest.MonkeyPatch.context() as environ:
        for name, value in CPU_ENGINE.items():
            environ.setenv(name, value)
        import sglang.srt.entrypoints.http_server
        import sglang.srt.managers.scheduler
        import sglang.srt.models.registry  # noqa: F401
    asyncio.set_event_loop_policy(policy)
    yield
    torch.tensor, torch.cuda.current_stream, torch.cuda.get_device_capability = before


@pytest.fixture(autouse=True)
def untouched_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test has this process's engine state to itself, and leaves the event loop policy as it was (the
    engine's modules put uvloop in when they are imported)."""
    for name in ("strategy", "pool", "allocator", "status", "integrity", "kv_dtype"):
        monkeypatch.setattr(state, name, None)
    monkeypatch.setattr(state, "settings", Settings())
    monkeypatch.setattr(state, "hooks", [])
    policy = asyncio.get_event_loop_policy()
    yield
    asyncio.set_event_loop_policy(policy)


class Place:
    """Says which rank this process is, and with which settings."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def at(self, rank: int, ranks: int) -> None:
        self._patch.setattr(state, "group", lambda: state.Group(rank, ranks))

    def settings(self, **chosen: object) -> None:
        self._patch.setattr(state, "settings", Settings(**chosen))


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    """Rank 0 of 2 with default settings, until told otherwise."""
    chosen = Place(monkeypatch)
    chosen.at(0, 2)
    return chosen
