"""Engines are slow to start (a minute or more on two cores): a module starts them once, tests share them.

Files are named so that the tests which need the same engines follow one another.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from harness.model import make_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model in the GLM-5 shape: 16 index heads, top-k 64, so that selection matters."""
    return make_model(tmp_path_factory.mktemp("model") / "tiny", topk=64)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Engine tests may take minutes on a busy machine, and the first of a folder waits for its engines."""
    for item in items:
        if item.get_closest_marker("stack") is not None:
            item.add_marker(pytest.mark.timeout(900))
