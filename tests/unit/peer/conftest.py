"""The server of the rank processes ends with the tests of this room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.unit.peer.ranks import stop_server


@pytest.fixture(scope="module", autouse=True)
def _server() -> Iterator[None]:
    yield
    stop_server()
