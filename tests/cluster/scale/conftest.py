"""Large fleets come last: their thousands of objects would slow whatever came after them in the cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_is_large)


def _is_large(item: pytest.Item) -> bool:
    marked = item.get_closest_marker("full") or item.get_closest_marker("soak")
    return FOLDER in item.path.parents and marked is not None
