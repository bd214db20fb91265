"""CP 4, the other split and chunk, no prefetch, no mapped memory: shared and replicated beside one decode."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import engines
from harness.suite import Groups

CHUNK = 128
COLLECTIVE = {"PLAIT_PREFETCH": "0", "PLAIT_PEER_ACCESS": "off"}


@pytest.fixture(scope="package")
def started(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Groups]:
    folder = tmp_path_factory.mktemp("cp4")
    common = {"model": model, "folder": folder, "cp": 4, "chunk": CHUNK, "split": "page-zigzag"}
    groups = Groups(
        engines.prefill("shared", layout="shared", env=COLLECTIVE, **common),
        # The reference gathers every token's rows: all that follows compares the narrow tail with it.
        engines.prefill("replicated", layout="replicated", env={"PLAIT_NARROW_TAIL": "0"}, **common),
        engines.decode("decode", model=model, folder=folder),
        CHUNK,
    )
    with engines.running(*groups[:3]):
        yield groups


@pytest.fixture
def groups(started: Groups) -> Groups:
    started.fresh()
    return started
