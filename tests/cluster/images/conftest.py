"""The tree, and a model's folder, once for all tests of the images."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cluster.images import recipes


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The injected tree, as images/runtime/tree.sh makes it."""
    return recipes.tree(tmp_path_factory.mktemp("runtime") / "site")
