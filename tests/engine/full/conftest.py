"""The rest of the matrix (make test-full): one configuration after the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from harness import engines
from harness.suite import Groups


class Shape(NamedTuple):
    """One configuration. `owners`: PLAIT_TEST_OWNERS."""

    cp: int
    split: str
    chunk: int
    owners: str = "off"

    def __str__(self) -> str:
        return f"cp{self.cp}-{self.split}-{self.chunk}-owners-{self.owners}"


SHAPES = (
    Shape(2, "page-zigzag", 192),
    Shape(2, "page-interleave", 128),
    Shape(4, "page-interleave", 192),
    Shape(4, "page-interleave", 192, owners="random"),
    Shape(2, "page-zigzag", 128, owners="random"),
)


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def started(
    request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Groups]:
    shape: Shape = request.param
    folder = tmp_path_factory.mktemp(str(shape))
    common = {"model": model, "folder": folder, "cp": shape.cp, "chunk": shape.chunk, "split": shape.split}
    env = {"PLAIT_TEST_OWNERS": shape.owners}
    groups = Groups(
        engines.prefill("shared", layout="shared", env=env, **common),
        engines.prefill("replicated", layout="replicated", env=env, **common),
        engines.decode("decode", model=model, folder=folder),
        shape.chunk,
    )
    with engines.running(*groups[:3]):
        yield groups


@pytest.fixture
def groups(started: Groups) -> Groups:
    started.fresh()
    return started
