"""Every split, chunk size and number of ranks, and random page owners: shared equals replicated."""

from __future__ import annotations

import pytest
from harness import suite

pytestmark = [pytest.mark.stack, pytest.mark.full]


@pytest.mark.parametrize("part", [p for _, p in suite.parts()], ids=[n for n, _ in suite.parts()])
def test_part(groups, part) -> None:
    part(groups)
