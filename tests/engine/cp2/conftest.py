"""CP 2: a shared stack from `plait up`, a replicated prefill group beside it, and stock SGLang at CP 1.

Both prefill groups send to the same decode engine, so whatever differs comes from the prefill side.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from harness import engines
from harness.engines import Engine, Stack
from harness.router import Router, router
from harness.suite import Groups

CHUNK = 192
SCRATCH = {"PLAIT_SCRATCH_TOKENS": str(engines.CONTEXT)}


class Cp2(NamedTuple):
    """The engines of this folder. Writing a fault's name to `fault` makes the shared group ill with it."""

    stack: Stack
    replicated: Engine
    stock: Engine
    fault: Path

    @property
    def shared(self) -> Engine:
        return self.stack.prefill

    @property
    def decode(self) -> Engine:
        return self.stack.decode

    @property
    def groups(self) -> Groups:
        """For the suite."""
        return Groups(self.shared, self.replicated, self.decode, CHUNK)

    def fresh(self) -> None:
        """Empty caches everywhere."""
        for engine in (self.shared, self.replicated, self.stock):
            engine.flush()


@pytest.fixture(scope="package")
def started(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cp2]:
    folder = tmp_path_factory.mktemp("cp2")
    fault = folder / "fault"
    stack = engines.up(
        "shared",
        *("--cp", "2", "--decode", "1", "--chunk", str(CHUNK), "--layout", "shared"),
        model=model,
        folder=folder,
        # Small prompts on a host's memory: left to itself the policy would fetch nothing ahead.
        env={**SCRATCH, "PLAIT_TEST_FAULT": f"file:{fault}", "PLAIT_GATHER_PATH": "copy"},
    )
    replicated = engines.prefill(
        "replicated",
        model=model,
        folder=folder,
        layout="replicated",
        cp=2,
        chunk=CHUNK,
        # The reference gathers every token's rows: all that follows compares the narrow tail with it.
        env={**SCRATCH, "PLAIT_NARROW_TAIL": "0"},
    )
    stock = engines.stock("stock", model=model, folder=folder, chunk=CHUNK)
    try:
        with engines.running(replicated, stock):
            yield Cp2(engines.wait_stack(stack), replicated, stock, fault)
    finally:
        engines.stop(stack.process)


@pytest.fixture
def cp2(started: Cp2) -> Cp2:
    """The engines, with empty caches and no fault."""
    started.fault.unlink(missing_ok=True)
    started.fresh()
    return started


@pytest.fixture(scope="package")
def own(started: Cp2, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    """A router before the shared group that has an admin port, and does not end with the stack."""
    folder = tmp_path_factory.mktemp("own")
    with router("own", prefill=started.shared, decode=started.decode, folder=folder) as running:
        yield running
