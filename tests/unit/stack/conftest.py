from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.stack.family import Family


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Family]]:
    """Starts families of stub children; ends whatever a failed test left."""
    families: list[Family] = []

    def run(children: dict[str, list[str]], **options: float) -> Family:
        families.append(Family(tmp_path, children, **options))
        return families[-1]

    yield run
    for family in families:
        family.clean_up()
